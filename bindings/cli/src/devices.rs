//! `estafette devices`

use estafette::Engine;

/// Prints one line per device.
pub(crate) fn print() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder().workers(0).build()?;
    println!("{:<14} {:<10} {:<24} host access", "device", "dlpack", "name");
    for device in engine.devices() {
        let id = device.id();
        let dlpack = format!("({}, {})", id.device_type.0, id.device_id);
        let host = if device.host_accessible() { "yes" } else { "no" };
        println!("{:<14} {dlpack:<10} {:<24} {host}", id.to_string(), device.name());
    }
    Ok(())
}
