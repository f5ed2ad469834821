//! Tests of memory for other hosts. No second host was available, so the same process imports the
//! memory, if the system permits it.

use super::*;

const NOT_PERMITTED: i64 = 800;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn memory_for_other_hosts_works_or_says_what_is_missing() {
    let gpu = gpu();
    println!("fabric_memory: {}", gpu.info().capabilities.fabric_memory);
    if !gpu.info().capabilities.fabric_memory {
        println!("SKIPPED: the device is not made for a fabric");
        return;
    }
    let made = CudaPhysical::create_for_fabric(&gpu, 1);
    let (memory, handle) = match made {
        Ok(made) => made,
        Err(Error::Driver { code, name, .. }) => {
            println!("refused: {name} ({code})");
            assert_eq!(code, NOT_PERMITTED);
            assert!(name.contains("NOT_PERMITTED") && name.contains("IMEX channel"));
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let len = memory.len();
    assert!(len.is_multiple_of(gpu.info().granularity));
    let imported = CudaPhysical::import_from_fabric(&gpu, &handle, len).unwrap();
    let [one, two] = [&memory, &imported].map(|memory| {
        let place = Reservation::new(&gpu, 0, len, gpu.info().granularity).unwrap();
        // SAFETY: the range was just reserved.
        unsafe { place.map(0, memory, 0, len, Access::ReadWrite).unwrap() };
        place
    });
    let stream = Stream::new(&gpu);
    stream.fill(one.address(0), 0x5A, 1).unwrap();
    assert_eq!(stream.read(two.address(0)).unwrap(), 0x5A);
    for place in [&one, &two] {
        unmap(place, len);
    }
    // The memory can also be shared within the host.
    memory.descriptor(Access::ReadWrite).unwrap();
    println!("allocated, exported and imported in one process");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_is_no_handle_of_a_fabric_is_refused() {
    let gpu = gpu();
    let unit = gpu.info().granularity;
    for byte in [0, 1, 0x5A, 0xFF] {
        let refused = CudaPhysical::import_from_fabric(&gpu, &[byte; 64], unit).map(drop);
        let Err(Error::Driver { code, name, .. }) = refused else {
            panic!("{byte}: {refused:?}");
        };
        println!("{byte}: {name} ({code})");
    }
    let refused = CudaPhysical::import_from_fabric(&gpu, &[0; 64], unit + 1).map(drop);
    assert!(matches!(refused, Err(Error::Protocol(_))), "{refused:?}");
}
