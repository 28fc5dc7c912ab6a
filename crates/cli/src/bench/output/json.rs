//! Everything, for programs.

use crate::bench::result::Document;
use serde_json::json;

/// One object: the machine, and the sections with all of their rows.
pub(super) fn json(document: &Document) -> String {
    let sections = document.sections.iter().map(|section| {
        json!({
            "name": section.name,
            "setting": section.setting,
            "layout": section.layout,
            "notes": section.notes,
            "results": section.rows(),
        })
    });
    let (targets, met) = document.targets();
    let whole = json!({
        "machine": document.machine,
        "rounds": document.rounds,
        "quick": document.quick,
        "busy": document.busy,
        "missing": document.missing,
        "sections": sections.collect::<Vec<_>>(),
        "targets": { "all": targets, "met": met },
    });
    format!("{whole:#}\n")
}

#[cfg(test)]
pub(in crate::bench::output) mod tests {
    use super::*;
    use crate::bench::result::{Layout, Machine, Sample, Section, Target, Unit};

    /// A document with one of everything, with characters that formats have to escape.
    pub(in crate::bench::output) fn document() -> Document {
        let sample = |name: &str, size, value| Sample::new(name, size, Unit::BytesPerSecond, value);
        let mut list = Section::new("roce0", "over <loopback> & back", Layout::List);
        list.add(sample("raw \"TCP\", stream", 65536, 2e9).into_yardstick());
        let target = Some(Target::AtMost(1.3));
        list.add(sample("write", 65536, 1e9).against("raw \"TCP\", stream", 65536).target(target));
        list.note("A note with a < in it.");
        let mut curves = Section::new("write: throughput", "", Layout::Curves);
        for (size, rate) in [(8, 1e7), (512, 5e8), (65536, 4e9), (1 << 20, 3.5e9)] {
            curves.add(sample("memory copy", size, 3.0 * rate).into_yardstick());
            curves.add(sample("roce0", size, rate).against("memory copy", size));
        }
        let mut comparison = Section::new("programs", "", Layout::Comparison);
        comparison.add(Sample::new("tag_lat", 8, Unit::Nanoseconds, 400.0).into_yardstick());
        let ours = Sample::new("ib_send_lat", 8, Unit::Nanoseconds, 440.0).against("tag_lat", 8);
        comparison.add(ours.target(Some(Target::AtMost(1.2))));
        let machine =
            Machine { processors: 2, processor: "a <CPU>".into(), kernel: "6".into(), version: "0" };
        let missing = vec!["Not measured: a <path>.".into()];
        Document {
            machine,
            rounds: 1,
            quick: true,
            busy: None,
            missing,
            sections: vec![list, curves, comparison],
        }
    }

    #[test]
    fn fields_are_where_they_should_be() {
        let value: serde_json::Value = serde_json::from_str(&super::json(&document())).expect("good JSON");
        let row = &value["sections"][0]["results"][1];
        assert_eq!((row["name"].as_str(), row["unit"].as_str()), (Some("write"), Some("bytes_per_second")));
        assert_eq!((row["ratio"].as_f64(), row["target"]["at_most"].as_f64()), (Some(0.5), Some(1.3)));
        assert_eq!(row["per_second"].as_f64(), Some(1e9 / 65536.0));
        assert_eq!((value["targets"]["all"].as_u64(), value["rounds"].as_u64()), (Some(2), Some(1)));
        assert_eq!(value["sections"][1]["layout"], "curves");
    }
}
