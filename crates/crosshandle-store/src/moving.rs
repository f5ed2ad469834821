//! Moves a model to memory on another device under the same name. For example, a model moves to the
//! host while another job needs the GPU's memory.

use crate::contents::Work;
use crate::contents::hash::{self, PieceHash};
use crate::error::{Error, Result};
use crate::load::LoadOptions;
use crate::model::{Model, check_readable};
use crate::state::State;
use crate::store::{DATA, MANIFEST, STATE, Store};
use crosshandle::AllocationOptions;
use crosshandle::holder::{HandedOver, HoldOptions};

/// Copies an open model to a device, and publishes the copy as the next version of its name. The
/// copy has the same tensors in the same places, and the same hash.
pub(crate) fn move_to(
    store: &Store,
    model: &Model,
    device: &str,
    options: &LoadOptions,
) -> Result<HandedOver> {
    let (seen, source) = (model.seen(), model.memory()?);
    let (host, context) = (store.context_on("host")?, store.context_on(device)?);
    let bytes = source.len() as u64;
    let data = context.allocate_with(AllocationOptions::new(source.len()).populate(true))?;
    let progress = |done| options.tell(done, bytes);
    let pieces: Vec<u64> = (0..hash::pieces(bytes)).collect();
    match source.bytes() {
        Ok(from) => Work::new(&context, &data, options, &progress).write_from(from, &pieces)?,
        Err(_) => {
            // The host cannot access the source, so the destination must be memory that the host
            // can access.
            let into = data.bytes()?;
            Work::new(model.context(), source, options, &progress).read_into(into, &pieces)?;
        }
    }
    let (state, text) = (model.state(), model.manifest().to_bytes());
    let known: Result<Option<Vec<PieceHash>>> = pieces
        .iter()
        .map(|piece| state.hash_of(*piece, bytes))
        .collect();
    let address = state.agreed_address()?;
    let own = match known? {
        Some(hashes) => State::create(&host, address, &hashes)?,
        None => State::create_unhashed(&host, address, pieces.len() as u64)?,
    };
    let listing = host.allocate(text.len())?;
    listing.write(0, &text)?;
    if !model.is_still(seen)? {
        return Err(Error::Overwritten);
    }
    let parts = [(DATA, &data), (MANIFEST, &listing), (STATE, own.memory())];
    let hold = HoldOptions::new()
        .replaces(true)
        .label(model.hash().to_hex().as_str());
    check_readable(store, model.name(), &parts, model.hash())?;
    Ok(store.holder().hand_over(model.name(), &parts, hold)?)
}
