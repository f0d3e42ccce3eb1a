//! `estafette devices`

use std::io::{self, Write};

use estafette::Engine;
use estafette::devices::{DLDevice, Device, table};

/// Prints one line per device: those of an engine, then the device table. Says of each kind without a runtime
/// why.
pub(crate) fn print(out: &mut impl Write) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder().workers(0).build()?;
    writeln!(out, "{:<14} {:<12} {:<32} {:<12} context", "device", "dlpack", "name", "host access")?;
    for device in engine.devices() {
        row(out, device.id(), device.name(), device.host_accessible(), "")?;
    }
    for entry in table::entries() {
        let device = entry.device.as_deref();
        let host = device.is_some_and(|device: &dyn Device| device.host_accessible());
        let count = entry.registrations;
        let context = if count == 0 { "default".to_owned() } else { format!("registered {count} times") };
        row(out, entry.id, device.map_or("a context", |device| device.name()), host, &context)?;
    }
    for why in table::missing() {
        writeln!(out, "{}", why.message())?;
    }
    Ok(())
}

fn row(out: &mut impl Write, id: DLDevice, name: &str, host: bool, context: &str) -> io::Result<()> {
    let dlpack = format!("({}, {})", id.device_type.0, id.device_id);
    let host = if host { "yes" } else { "no" };
    writeln!(out, "{:<14} {dlpack:<12} {name:<32} {host:<12} {context}", id.to_string())
}
