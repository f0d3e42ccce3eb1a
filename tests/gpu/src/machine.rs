//! Facts of the machine, for the record: what `nvidia-smi -q` says of driver and device.

use std::process::Command;
use std::time::Duration;

use crate::record::Record;
use crate::supervise::{self, How};

/// It can hang with the driver.
const LIMIT: Duration = Duration::from_secs(20);

/// Facts of the machine, by the headings that they stand under. The report has one section for each device; a
/// fact of the first device is the one that counts.
const FACTS: &[(&str, &str)] = &[
    ("Driver Version", "driver's version"),
    ("Product Name", "product"),
    ("Persistence Mode", "persistence mode"),
    ("MIG Mode/Current", "multi-instance mode"),
    ("Compute Mode", "compute mode"),
    ("ECC Mode/Current", "error correction"),
    ("GPU Virtualization Mode/Virtualization Mode", "virtualization"),
    ("Clocks/SM", "clock of the multiprocessors, idle"),
    ("Clocks/Memory", "clock of the memory, idle"),
    ("Max Clocks/SM", "greatest clock of the multiprocessors"),
    ("Max Clocks/Memory", "greatest clock of the memory"),
];

/// Notes what `nvidia-smi` says; a machine without it is noted as such.
pub fn describe(record: &mut Record) {
    match report() {
        Ok(report) => facts(&report).iter().for_each(|(name, value)| record.note(name, value)),
        Err(why) => record.note("nvidia-smi", &why),
    }
}

fn report() -> Result<String, String> {
    match supervise::logged(Command::new("nvidia-smi").arg("-q"), "smi", LIMIT) {
        Ok((How::Ended(status), text)) if status.success() => Ok(text),
        Ok((how, _)) => Err(how.words()),
        Err(error) => Err(format!("does not start: {error}")),
    }
}

/// The facts of a report. Its lines are `name : value`, or a heading of what is indented below it.
fn facts(report: &str) -> Vec<(&'static str, String)> {
    let mut headings: Vec<(usize, &str)> = Vec::new();
    let mut found: Vec<(&'static str, String)> = Vec::new();
    for line in report.lines().filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start().len();
        headings.retain(|(other, _)| *other < indent);
        let Some((name, value)) = line.split_once(" : ") else {
            headings.push((indent, line.trim()));
            continue;
        };
        let (name, value) = (name.trim(), value.trim());
        let inner = headings.last().map(|(_, heading)| format!("{heading}/{name}"));
        let is_named = |fact: &&(&str, &str)| fact.0 == name || inner.as_deref() == Some(fact.0);
        if let Some((_, fact)) = FACTS.iter().find(is_named)
            && !found.iter().any(|(known, _)| known == fact)
        {
            found.push((fact, value.to_owned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_under_their_headings_and_of_the_first_device() {
        let report = "
==============NVSMI LOG==============

Driver Version                            : 570.86.15
CUDA Version                              : 12.8

Attached GPUs                             : 2
GPU 00000000:8D:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    Compute Mode                          : Default
    Clocks
        Graphics                          : 345 MHz
        SM                                : 345 MHz
        Memory                            : 2619 MHz
    Max Clocks
        SM                                : 1980 MHz
GPU 00000000:9D:00.0
    Product Name                          : another
    MIG Mode
        Current                           : Enabled
";
        let found = facts(report);
        let found: Vec<(&str, &str)> = found.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(
            found,
            [
                ("driver's version", "570.86.15"),
                ("product", "NVIDIA H100 80GB HBM3"),
                ("persistence mode", "Enabled"),
                ("multi-instance mode", "Disabled"),
                ("compute mode", "Default"),
                ("clock of the multiprocessors, idle", "345 MHz"),
                ("clock of the memory, idle", "2619 MHz"),
                ("greatest clock of the multiprocessors", "1980 MHz"),
            ]
        );
    }
}
