//! The processors that packages are made for.

use std::process::Command;

/// A processor, by its names.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// Rust's and the kernel's.
    pub(crate) name: &'static str,
    /// Debian's.
    pub(crate) debian: &'static str,
    /// The C library's dynamic linker.
    pub(crate) linker: &'static str,
}

/// All architectures that are packaged.
pub(crate) const ALL: [Architecture; 2] = [
    Architecture { name: "x86_64", debian: "amd64", linker: "ld-linux-x86-64.so.2" },
    Architecture { name: "aarch64", debian: "arm64", linker: "ld-linux-aarch64.so.1" },
];

impl Architecture {
    /// # Errors
    /// When there are no packages for this machine's processor.
    pub(crate) fn of_this_machine() -> Result<&'static Self, String> {
        let name = std::env::consts::ARCH;
        ALL.iter().find(|one| one.name == name).ok_or_else(|| format!("there are no packages for {name}"))
    }

    /// What rustc calls it.
    pub(crate) fn target(&self) -> String {
        format!("{}-unknown-linux-gnu", self.name)
    }

    /// A program of its compilers and binutils, which may be those for other processors.
    pub(crate) fn tool(&self, name: &str) -> Command {
        Command::new(self.tool_name(name))
    }

    pub(crate) fn tool_name(&self, name: &str) -> String {
        if self.name == std::env::consts::ARCH {
            name.to_owned()
        } else {
            format!("{}-linux-gnu-{name}", self.name)
        }
    }
}
