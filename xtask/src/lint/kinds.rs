//! Code names a kind of device in the folders of that kind alone: each difference between kinds is a question
//! that a `Device`, `Queue`, `DLDevice`, `DeviceType` or `Kind` answers. Comments may name kinds as examples.
//! Tests in files may too, but for those of the engine, which use kinds that do not exist.

use std::path::Path;

use super::source;

/// Words that belong to one kind of device, in lower case.
const KINDS: [&str; 7] = ["cuda", "sycl", "oneapi", "rocm", "opencl", "vulkan", "metal"];

struct Place {
    folder: &'static str,
    extension: &'static str,
    /// The files and folders that belong to one kind.
    of_kinds: &'static [&'static str],
    /// Files that may name a kind, each with its reason.
    allowed: &'static [(&'static str, &'static str)],
}

const ENGINE: &str = "engine/src";

const PLACES: [Place; 6] = [
    Place {
        folder: ENGINE,
        extension: "rs",
        of_kinds: &[],
        allowed: &[("adapters/cudarc.rs", "the types of the crate cudarc")],
    },
    Place {
        folder: "devices/src",
        extension: "rs",
        of_kinds: &["cuda", "sycl"],
        allowed: &[
            ("dl_device.rs", "DLPack's numbers, and what DLPack and Arrow say of them"),
            ("lib.rs", "the `mod` of each kind, and its entry in `BACKENDS`"),
        ],
    },
    Place { folder: "bindings/c/src", extension: "rs", of_kinds: &[], allowed: &[] },
    Place { folder: "bindings/cli/src", extension: "rs", of_kinds: &[], allowed: &[] },
    Place {
        folder: "bindings/python/src",
        extension: "rs",
        of_kinds: &["kinds/cuda", "kinds/sycl"],
        allowed: &[("kinds/mod.rs", "the `mod` of each kind, and its entry in `KINDS`")],
    },
    Place {
        folder: "bindings/python/python/estafette",
        extension: "py",
        of_kinds: &["_kinds/cuda", "_kinds/sycl.py"],
        allowed: &[("typing.py", "public types of what functions take as a stream")],
    },
];

/// Prints how many lines of each place name a kind, and returns those that may not.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut wrong = Vec::new();
    for place in &PLACES {
        let folder = root.join(place.folder);
        let (mut files, mut allowed, before) = (0, 0, wrong.len());
        for file in source::files(&folder, place.extension)? {
            let path = file.strip_prefix(&folder).map_err(|error| error.to_string())?;
            let of_engine = place.folder == ENGINE;
            if path.ends_with("tests.rs") && !of_engine
                || place.of_kinds.iter().any(|own| path.starts_with(own))
            {
                continue;
            }
            files += 1;
            let text = source::read(&file)?;
            let lines = named(&match place.extension {
                "py" => python(&text),
                _ if of_engine => source::without_comments(&text),
                _ => source::code(&text),
            });
            if place.allowed.iter().any(|(allowed, _)| path == Path::new(allowed)) {
                allowed += lines.len();
            } else {
                wrong.extend(lines.iter().map(|line| format!("{}/{}: {line}", place.folder, path.display())));
            }
        }
        println!(
            "kinds: {} lines name a kind of device, in {files} files of {}; {allowed} lines may, in {} of them",
            wrong.len() - before,
            place.folder,
            place.allowed.len()
        );
    }
    Ok(wrong)
}

fn named(code: &str) -> Vec<String> {
    let names = |line: &str| {
        // The name of a crate is none of a kind, nor is the address of a page.
        let words = line.split_whitespace().filter(|word| !word.contains(".html"));
        let line = words.collect::<String>().to_lowercase().replace('_', "").replace("cudarc", "");
        KINDS.iter().any(|kind| line.contains(kind))
    };
    code.lines().filter(|line| names(line)).map(|line| line.trim().to_owned()).collect()
}

/// `text` without comments and without texts in three quotes, which are descriptions.
fn python(text: &str) -> String {
    let code: String = text.split("\"\"\"").step_by(2).collect();
    let lines = code.lines().map(|line| if line.trim_start().starts_with('#') { "" } else { line });
    lines.map(|line| line.split("  # ").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
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

    #[test]
    fn descriptions_and_comments_of_python_may_name_a_kind() {
        let text = "\"\"\"Streams of CUDA.\"\"\"\nx = 1  # CUDA's\n# SYCL\ny = \"cuda\"\nz = \"notes/cuda.html, Streams\"\n";
        assert_eq!(named(&python(text)), ["y = \"cuda\""]);
    }
}
