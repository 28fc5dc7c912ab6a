//! Every structure has the size and the offsets that the distribution's headers give it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use adverb_abi_tests::{Folder, compile, output_of};
use adverb_libibverbs::abi::{
    self, ibv_send_wr, ibv_send_wr_atomic, ibv_send_wr_bind_mw, ibv_send_wr_rdma, ibv_send_wr_ud,
};

const HEADERS: &str = "#include <stdio.h>\n#include <stddef.h>\n#include <time.h>\n#include <infiniband/verbs.h>\n\
    #include <infiniband/sa.h>\n#include <rdma/rdma_cma.h>\n#include <rdma/ib_user_verbs.h>\n#include <rdma/ib_user_sa.h>\n";

/// Fields that some distributions' headers lack: (structure, field). All others must exist.
const NEWER: &[(&str, &str)] = &[
    ("ibv_qp_ex", "wr_flush"),
    ("ibv_port_attr", "active_speed_ex"),
    ("verbs_context", "free_buf"),
    ("verbs_context", "alloc_buf"),
    ("verbs_context", "dm_export_dmabuf_fd"),
    ("verbs_context", "reg_mr_ex"),
    ("verbs_context", "dealloc_dmah"),
    ("verbs_context", "alloc_dmah"),
];

/// `verbs_context` grows at the front, so its fields are compared by their distance from the end.
const GROWS_AT_THE_FRONT: &str = "verbs_context";

#[test]
fn structures_match_the_headers() {
    let folder = Folder::new("layout");
    let exists = |structure: &str, field: &str| {
        if !NEWER.contains(&(structure, field)) {
            return true;
        }
        let source =
            format!("{HEADERS}int main(void) {{ return (int)offsetof(struct {structure}, {field}); }}\n");
        compile(&folder, "probe", &source).is_ok()
    };
    let mut layouts = abi::layouts();
    layouts.extend(adverb_librdmacm::abi::layouts());
    assert!(layouts.len() > 60, "a structure got lost");

    let mut source = format!("{HEADERS}int main(void) {{\n");
    let mut expected = HashMap::new();
    let mut compared = 0;
    for (name, size, fields) in layouts {
        let fields: Vec<_> =
            fields.iter().map(|field| (field.0.trim_start_matches("r#"), field.1, field.2)).collect();
        let known: Vec<_> = fields.iter().filter(|field| exists(name, field.0)).collect();
        if known.len() == fields.len() {
            writeln!(source, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").expect("a string");
            expected.insert(name.to_owned(), size);
        }
        for &&(field, offset, width) in &known {
            let (c_base, base) = if name == GROWS_AT_THE_FRONT {
                (format!("sizeof(struct {name}) - "), size - offset)
            } else {
                (String::new(), offset)
            };
            writeln!(source, "printf(\"{name}.{field} %zu\\n\", {c_base}offsetof(struct {name}, {field}));")
                .expect("a string");
            writeln!(
                source,
                "printf(\"{name}.{field}.size %zu\\n\", sizeof(((struct {name} *)0)->{field}));"
            )
            .expect("a string");
            expected.insert(format!("{name}.{field}"), base);
            expected.insert(format!("{name}.{field}.size"), width);
            compared += 1;
        }
    }
    let target = offset_of!(ibv_send_wr, wr);
    for (field, offset) in [
        ("imm_data", offset_of!(ibv_send_wr, imm_data)),
        ("invalidate_rkey", offset_of!(ibv_send_wr, imm_data)),
        ("wr.rdma.remote_addr", target + offset_of!(ibv_send_wr_rdma, remote_addr)),
        ("wr.rdma.rkey", target + offset_of!(ibv_send_wr_rdma, rkey)),
        ("wr.atomic.compare_add", target + offset_of!(ibv_send_wr_atomic, compare_add)),
        ("wr.atomic.swap", target + offset_of!(ibv_send_wr_atomic, swap)),
        ("wr.atomic.rkey", target + offset_of!(ibv_send_wr_atomic, rkey)),
        ("wr.ud.ah", target + offset_of!(ibv_send_wr_ud, ah)),
        ("wr.ud.remote_qpn", target + offset_of!(ibv_send_wr_ud, remote_qpn)),
        ("wr.ud.remote_qkey", target + offset_of!(ibv_send_wr_ud, remote_qkey)),
        ("bind_mw.rkey", offset_of!(ibv_send_wr, bind_mw) + offset_of!(ibv_send_wr_bind_mw, rkey)),
        ("bind_mw.bind_info", offset_of!(ibv_send_wr, bind_mw) + offset_of!(ibv_send_wr_bind_mw, bind_info)),
    ] {
        writeln!(source, "printf(\"send {field} %zu\\n\", offsetof(struct ibv_send_wr, {field}));")
            .expect("a string");
        expected.insert(format!("send {field}"), offset);
    }
    source.push_str("return 0;\n}\n");

    let program = compile(&folder, "layout", &source).unwrap_or_else(|error| panic!("{error}"));
    let printed = output_of(&mut Command::new(program));
    assert_eq!(printed.lines().count(), expected.len());
    let mut wrong = Vec::new();
    for line in printed.lines() {
        let (name, value) = line.rsplit_once(' ').expect("a name and a number");
        let value: usize = value.parse().expect("a number");
        if expected[name] != value {
            wrong.push(format!("{name}: the header has {value}, the library {}", expected[name]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 500, "only {compared} fields were compared");
}
