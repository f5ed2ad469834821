//! Tests fabric memory, which other hosts open directly, on a device without a fabric.

use crosshandle::{Context, Device, ErrorKind, Memory, handle::FabricHandle};

#[test]
fn devices_without_a_fabric_say_so() {
    let device = Device::find("host").unwrap();
    assert!(!device.info().capabilities.fabric_memory);
    let context = Context::new(&device).unwrap();
    let refused = Memory::allocate_fabric(&context, 1 << 21).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("link"), "{refused}");
    // A well-formed handle that a host with a GPU could have made.
    let text = "xhf1.WEhERgECAAAHAAAAAAAAAAAAIAAAAAAAAwMDAwMDAwMDAwMDAwMDAwkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkAAAAA";
    let handle = text.parse::<FabricHandle>();
    // The tag of the handle is wrong.
    assert!(handle.unwrap_err().to_string().contains("damaged"));
}
