//! The description of the host.

use crosshandle_handle::{BackendKind, DeviceUuid};
use crosshandle_os::fork::PerProcess;
use crosshandle_os::mapping::{HUGE_PAGE, page_size};
use crosshandle_os::process;
use crosshandle_types::{Capabilities, DeviceInfo, dlpack, known};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Returns the description of the host as a device.
pub(super) fn host() -> &'static DeviceInfo {
    static HOST: PerProcess<DeviceInfo> = PerProcess::new(describe);
    &HOST
}

/// Returns the amount of memory that can be allocated without swapping, in bytes.
pub(super) fn free_memory() -> Option<u64> {
    let available = kibibytes("MemAvailable")?;
    Some(match (control_group("max"), control_group("current")) {
        (Some(limit), Some(used)) => available.min(limit.saturating_sub(used)),
        _ => available,
    })
}

fn describe() -> DeviceInfo {
    let system = rustix::system::uname();
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let vendor = value_in(&processor, "vendor_id").or(value_in(&processor, "CPU implementer"));
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
    let cache = largest_cache();
    let total_memory = total_memory();
    let features = Features::detect();
    DeviceInfo {
        name: value_in(&processor, "model name")
            .unwrap_or("Host CPU")
            .into(),
        vendor: vendor.unwrap_or("unknown").into(),
        vendor_id: vendor.and_then(pci_vendor),
        device_id: None,
        pci_address: None,
        driver_version: system.release().to_string_lossy().into_owned(),
        backend: BackendKind::Host,
        index: 0,
        uuid: uuid(),
        total_memory,
        max_allocation: total_memory,
        memory_clock_rate: None,
        memory_bus_width: None,
        cache_size: cache.map(|(size, _)| size),
        cache_line: cache.map(|(_, line)| line),
        compute_units: cpus as u32,
        clock_rate: clock_rate(&processor),
        vector_width: features.vector_width,
        granularity: page_size(),
        import_alignment: HUGE_PAGE,
        dlpack_type: dlpack::CPU,
        capabilities: Capabilities {
            memory_sharing: true,
            physical_memory_sharing: true,
            event_sharing: true,
            device_signals: true,
            read_only_memory: true,
            host_accessible_memory: true,
            host_memory_only: true,
            partial_mappings: true,
            fabric_memory: false,
            late_failures: true,
            native_graphs: false,
            unified_memory: true,
            system_memory: true,
            // The system loads a driver for the memory controller if the controller corrects
            // errors.
            error_correction: Path::new("/sys/devices/system/edac/mc/mc0").exists(),
            half_precision: features.half_precision,
            double_precision: true,
            fused_multiply_add: features.fused_multiply_add,
            timer_resolution: Duration::from_nanos(1),
        },
    }
}

/// The processor features that kernels can use. A feature is absent if the system does not save its
/// registers.
struct Features {
    vector_width: Option<u32>,
    half_precision: bool,
    fused_multiply_add: bool,
}

impl Features {
    #[cfg(target_arch = "x86_64")]
    fn detect() -> Self {
        use std::arch::is_x86_feature_detected as has;
        Self {
            vector_width: Some(match (has!("avx512f"), has!("avx")) {
                (true, _) => 64,
                (false, true) => 32,
                (false, false) => 16,
            }),
            half_precision: has!("f16c"),
            fused_multiply_add: has!("fma"),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn detect() -> Self {
        use std::arch::is_aarch64_feature_detected as has;
        Self {
            vector_width: Some(16),
            half_precision: has!("fp16"),
            fused_multiply_add: true,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn detect() -> Self {
        Self {
            vector_width: None,
            half_precision: false,
            fused_multiply_add: false,
        }
    }
}

/// Returns the PCI vendor number of a processor's manufacturer, by its name in `/proc/cpuinfo`.
fn pci_vendor(name: &str) -> Option<u32> {
    match name {
        "GenuineIntel" => Some(0x8086),
        "AuthenticAMD" => Some(0x1022),
        "HygonGenuine" => Some(0x1d94),
        // Arm's implementer code.
        "0x41" => Some(0x13b5),
        _ => None,
    }
}

/// Returns the clock rate in MHz. It is the highest rate if the system can change the rate, and
/// otherwise the current one.
fn clock_rate(processor: &str) -> Option<u32> {
    let highest = number_in("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
    if let Some(kilohertz) = highest {
        return known((kilohertz / 1000) as u32);
    }
    let constant = value_in(processor, "cpu MHz").and_then(|text| text.parse::<f64>().ok());
    constant.and_then(|rate| known(rate as u32))
}

/// Returns the size of the first processor's last-level cache, and the size of a cache line. Both
/// are in bytes.
fn largest_cache() -> Option<(u64, u32)> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache");
    let caches = caches.into_iter().flatten().flatten();
    caches
        .filter_map(|cache| {
            let kind = fs::read_to_string(cache.path().join("type")).ok()?;
            let level = number_in(cache.path().join("level"))?;
            let kibibytes = number_in(cache.path().join("size"))?;
            let line = number_in(cache.path().join("coherency_line_size"))?;
            (kind.trim() != "Instruction").then_some((level, kibibytes * 1024, line as u32))
        })
        .max()
        .map(|(_, size, line)| (size, line))
}

/// Returns the memory of the machine in bytes, limited to what this process's control group may
/// use.
fn total_memory() -> u64 {
    let all = kibibytes("MemTotal").unwrap_or(0);
    control_group("max").map_or(all, |limit| limit.min(all))
}

/// Returns a value from `/proc/meminfo`, in bytes.
fn kibibytes(name: &str) -> Option<u64> {
    let lines = fs::read_to_string("/proc/meminfo").ok()?;
    Some(leading_number(value_in(&lines, name)?)? * 1024)
}

/// Returns a memory value of the root control group, in bytes. In a container, this is the group of
/// its processes. Returns `None` if no limit is set.
fn control_group(name: &str) -> Option<u64> {
    number_in(format!("/sys/fs/cgroup/memory.{name}"))
}

/// Returns the number at the start of a file.
fn number_in(path: impl AsRef<Path>) -> Option<u64> {
    leading_number(fs::read_to_string(path).ok()?.trim())
}

fn leading_number(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

/// Returns the value of the first line that has the form `name : value`.
fn value_in<'a>(lines: &'a str, name: &str) -> Option<&'a str> {
    lines.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Returns the host's identity, which all processes share until the system restarts.
pub(super) fn uuid() -> DeviceUuid {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(UUID_START);
    uuid[8..].copy_from_slice(&process::host_identity().to_be_bytes());
    DeviceUuid::from_bytes(uuid)
}

/// The start of the host's identity. The number of the running system follows it.
const UUID_START: &[u8; 8] = b"xh-host\0";

/// Returns whether a device is this host. If one of the numbers is unknown, the host is assumed to
/// be the same.
pub(super) fn is_host(device: DeviceUuid) -> bool {
    let bytes = device.as_bytes();
    match bytes.split_first_chunk() {
        Some((start, number)) if start == UUID_START => {
            let number = number.try_into().map(u64::from_be_bytes);
            number.is_ok_and(process::may_be_this_host)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_in_lines() {
        let lines = "vendor_id\t: GenuineIntel\nflags\t\t:\nmodel name\t: A: B\nmodel name\t: C\n";
        assert_eq!(value_in(lines, "vendor_id"), Some("GenuineIntel"));
        assert_eq!(value_in(lines, "flags"), Some(""));
        assert_eq!(value_in(lines, "model name"), Some("A: B"));
        assert_eq!(value_in(lines, "model"), None);
    }

    #[test]
    fn numbers_may_have_a_unit() {
        assert_eq!(leading_number("2048K"), Some(2048));
        assert_eq!(leading_number("24684084 kB"), Some(24_684_084));
        assert_eq!(leading_number("max"), None);
    }

    #[test]
    fn the_host_is_described_in_full() {
        let host = host();
        assert!(host.total_memory > 0 && host.compute_units > 0);
        assert!(free_memory().is_some_and(|free| free > 0 && free <= host.total_memory));
        assert!(host.cache_line.is_none_or(u32::is_power_of_two));
        assert!(host.vector_width.is_none_or(u32::is_power_of_two));
    }
}
