//! Appending commands to lists.

use std::ffi::c_void;
use std::sync::Arc;

use level_zero_sys::*;

use crate::call::{Few, INVALID_NULL_POINTER, INVALID_SIZE, Result, entry, read, read_all};
use crate::device_info::MAX_PATTERN;
use crate::event::Event;
use crate::handles;
use crate::list::List;
use crate::space::{Region, find_range};
use crate::work::{Place, Work};

/// Finds the driver's memory in the two ranges that a command uses.
fn both(to: usize, from: usize, sizes: (usize, usize)) -> Result<Few<Arc<Region>>> {
    let mut regions = find_range(to, sizes.0)?;
    regions.extend(find_range(from, sizes.1)?);
    Ok(regions)
}

fn nothing(
    list: ze_command_list_handle_t,
    signal: ze_event_handle_t,
    waits: (u32, *mut ze_event_handle_t),
) -> Result<()> {
    let list = handles::get::<List, _>(list)?;
    list.append(Work::Nothing, Few::new(), signal, waits)
}

const NO_EVENT: ze_event_handle_t = std::ptr::null_mut();
const NO_WAITS: (u32, *mut ze_event_handle_t) = (0, std::ptr::null_mut());

entry! {
    fn zeCommandListAppendBarrier(
        list: ze_command_list_handle_t,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        nothing(list, signal, (count, waits))
    }

    fn zeCommandListAppendMemoryCopy(
        list: ze_command_list_handle_t,
        to: *mut c_void,
        from: *const c_void,
        size: usize,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        let list = handles::get::<List, _>(list)?;
        if to.is_null() || from.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        let (to, from) = (to.expose_provenance(), from.expose_provenance());
        let regions = both(to, from, (size, size))?;
        list.append(Work::Copy { to, from, size }, regions, signal, (count, waits))
    }

    fn zeCommandListAppendMemoryCopyRegion(
        list: ze_command_list_handle_t,
        to: *mut c_void,
        to_region: *const ze_copy_region_t,
        to_pitch: u32,
        to_slice_pitch: u32,
        from: *const c_void,
        from_region: *const ze_copy_region_t,
        from_pitch: u32,
        from_slice_pitch: u32,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        let list = handles::get::<List, _>(list)?;
        if to.is_null() || from.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        let (to_region, from_region) = (read(to_region)?, read(from_region)?);
        let size = |region: &ze_copy_region_t| {
            // A depth of 0 means a rectangle.
            [region.width, region.height, region.depth.max(1)].map(|size| size as usize)
        };
        if size(&to_region) != size(&from_region) {
            return Err(INVALID_SIZE);
        }
        let [width, height, depth] = size(&to_region);
        let to = Place::new(to.expose_provenance(), &to_region, to_pitch, to_slice_pitch);
        let from = Place::new(from.expose_provenance(), &from_region, from_pitch, from_slice_pitch);
        let reach = |place: &Place| place.reach(width, height, depth);
        let regions = both(to.address, from.address, (reach(&to), reach(&from)))?;
        let work = Work::CopyRegion { to, from, width, height, depth };
        list.append(work, regions, signal, (count, waits))
    }

    fn zeCommandListAppendMemoryFill(
        list: ze_command_list_handle_t,
        to: *mut c_void,
        pattern: *const c_void,
        pattern_size: usize,
        size: usize,
        signal: ze_event_handle_t,
        count: u32,
        waits: *mut ze_event_handle_t,
    ) {
        let list = handles::get::<List, _>(list)?;
        if to.is_null() {
            return Err(INVALID_NULL_POINTER);
        }
        if !pattern_size.is_power_of_two() || pattern_size > MAX_PATTERN {
            return Err(INVALID_SIZE);
        }
        let pattern = read_all(pattern.cast::<u8>(), pattern_size as u32)?;
        let to = to.expose_provenance();
        let regions = find_range(to, size)?;
        list.append(Work::Fill { to, pattern, size }, regions, signal, (count, waits))
    }

    fn zeCommandListAppendSignalEvent(
        list: ze_command_list_handle_t,
        event: ze_event_handle_t,
    ) {
        handles::get::<Event, _>(event)?;
        nothing(list, event, NO_WAITS)
    }

    fn zeCommandListAppendWaitOnEvents(
        list: ze_command_list_handle_t,
        count: u32,
        events: *mut ze_event_handle_t,
    ) {
        nothing(list, NO_EVENT, (count, events))
    }
}
