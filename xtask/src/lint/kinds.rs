//! The engine names no kind of device: each difference between kinds is a question that a `Device`, `Queue`, `DLDevice` or
//! `DeviceType` answers. Comments may name kinds as examples.

use std::path::Path;

use super::source;

/// Words that belong to one kind of device, in lower case.
const KINDS: [&str; 7] = ["cuda", "sycl", "oneapi", "rocm", "opencl", "vulkan", "metal"];

/// Files that may name a kind, each with its reason.
const ALLOWED: [(&str, &str); 1] = [("adapters/cudarc.rs", "the types of the crate cudarc")];

/// Prints how many files were read, and returns each line of code that names a kind.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let folder = root.join("engine/src");
    let files = source::files(&folder, "rs")?;
    let mut wrong = Vec::new();
    for file in &files {
        let path = file.strip_prefix(&folder).map_err(|error| error.to_string())?;
        if path.ends_with("tests.rs") || ALLOWED.iter().any(|(allowed, _)| path == Path::new(allowed)) {
            continue;
        }
        let lines = named(&source::code(&source::read(file)?));
        wrong.extend(lines.iter().map(|line| format!("engine/src/{}: {line}", path.display())));
    }
    println!("kinds: {} lines name a kind of device, in {} files of engine/src", wrong.len(), files.len());
    Ok(wrong)
}

fn named(code: &str) -> Vec<String> {
    let names = |line: &str| {
        // The name of a crate is none of a kind.
        let line = line.to_lowercase().replace('_', "").replace("cudarc", "");
        KINDS.iter().any(|kind| line.contains(kind))
    };
    code.lines().filter(|line| names(line)).map(|line| line.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_and_texts_are_found_in_any_case() {
        let code =
            "use devices::cuda::CudaDevice;\nlet x = DeviceType::ONE_API;\nf(\"a SYCL queue\");\nlet y = 1;";
        assert_eq!(named(code).len(), 3);
    }
}
