use std::fmt::Debug;

use ndarray::{Array5, s};
use proptest::prelude::*;
use transload_layout::document::Value;
use transload_layout::{Deployment, Rank, make_meta_kv_cache};

use super::*;

const FAR: u64 = 1 << 44;

/// Makes a view of one component, from `(extent, stride)` of `L`, `B`, `S`, `H`, `C` and the bytes of an element.
fn view(offset: u64, dims: [(u64, u64); 5], element: u64) -> View {
    let axes = [Axis::Layer, Axis::Block, Axis::State, Axis::Unit, Axis::Content(0)];
    let dims = axes.into_iter().zip(dims);
    let mut dims: SmallVec<[Dim; 8]> = dims.map(|(axis, (extent, stride))| Dim { axis, extent, stride }).collect();
    dims.push(Dim { axis: Axis::Byte, extent: element, stride: 1 });
    View { offset, dims }
}

fn small() -> View {
    view(0, [(2, 48), (2, 24), (3, 8), (1, 8), (4, 2)], 2)
}

#[track_caller]
fn refused<T: Pod + Debug>(memory: &mut Memory, view: &View, borrowed: ArrayError, copied: Option<ArrayError>) {
    assert_eq!(memory.array_mut::<T>(view).unwrap_err(), borrowed);
    // SAFETY: the memory has no other holder.
    let in_place = unsafe { memory.array_view::<T>(view) };
    assert_eq!(in_place.unwrap_err(), borrowed);
    assert_eq!(memory.to_array::<T>(view).err(), copied);
}

#[test]
fn what_is_written_in_place_is_what_a_copy_has() {
    let mut memory = Memory::allocate(&[96]).unwrap();
    let mut array = memory.array_mut::<u16>(&small()).unwrap();
    assert_eq!((array.shape(), array.strides()), (&[2, 2, 3, 1, 4][..], &[24, 12, 4, 0, 1][..]));
    array[[1, 0, 2, 0, 3]] = 0x1234;
    let mut two = [0; 2];
    memory.read(48 + 2 * 8 + 3 * 2, &mut two).unwrap();
    assert_eq!(two, 0x1234u16.to_ne_bytes());
    let copy = memory.to_array::<u16>(&small()).unwrap();
    assert_eq!(copy.iter().filter(|&&value| value != 0).count(), 1);
    assert_eq!(copy[[1, 0, 2, 0, 3]], 0x1234);
}

#[test]
fn the_type_has_the_length_of_an_element() {
    let mut memory = Memory::allocate(&[96]).unwrap();
    for (actual, refusal) in [
        (1, memory.to_array::<u8>(&small()).unwrap_err()),
        (4, memory.to_array::<f32>(&small()).unwrap_err()),
        (0, memory.to_array::<()>(&small()).unwrap_err()),
    ] {
        let expected = 2;
        assert_eq!(refusal, ArrayError::ElementSize { expected, actual });
    }
    // Bytes will do for any element.
    assert!(memory.array_mut::<[u8; 2]>(&small()).is_ok());
    let empty = view(0, [(1, 0); 5], 0);
    let none = ArrayError::ElementSize { expected: 0, actual: 0 };
    refused::<()>(&mut memory, &empty, none, Some(none));
}

#[test]
fn elements_lie_where_their_type_can_be() {
    let mut memory = Memory::allocate(&[97]).unwrap();
    let moved = View { offset: 1, ..small() };
    let (start, _) = memory.allocation(0).unwrap();
    let address = start.addr().get() + 1;
    let misaligned = ArrayError::Misaligned { address, align: 2 };
    refused::<u16>(&mut memory, &moved, misaligned, None);
    assert!(memory.array_mut::<[u8; 2]>(&moved).is_ok());

    let odd = view(0, [(2, 27), (1, 0), (3, 9), (1, 0), (4, 2)], 2);
    let stride = ArrayError::Stride { axis: Axis::Layer, stride: 27, size: 2 };
    refused::<u16>(&mut memory, &odd, stride, None);
    // An axis with a single position needs no valid stride.
    assert!(memory.array_mut::<u16>(&view(0, [(1, 3); 5], 2)).is_ok());

    let mut torn = small();
    torn.dims[5].stride = 3;
    let stride = ArrayError::Stride { axis: Axis::Byte, stride: 3, size: 2 };
    refused::<u16>(&mut memory, &torn, stride, Some(stride));
}

#[test]
fn positions_that_share_bytes_are_refused() {
    let mut memory = Memory::allocate(&[96]).unwrap();
    let shared = view(0, [(2, 6), (1, 0), (1, 0), (1, 0), (4, 2)], 2);
    let overlap = ArrayError::Overlap { axis: Axis::Layer, stride: 6 };
    refused::<u16>(&mut memory, &shared, overlap, Some(overlap));
    let repeated = view(0, [(9, 0), (1, 0), (1, 0), (1, 0), (4, 2)], 2);
    let overlap = ArrayError::Overlap { axis: Axis::Layer, stride: 0 };
    refused::<u16>(&mut memory, &repeated, overlap, Some(overlap));
}

#[test]
fn views_that_reach_beyond_the_memory_are_refused() {
    let mut memory = Memory::allocate(&[95]).unwrap();
    let beyond = AccessError::OutOfBounds { allocation: 0, offset: 0, len: 96, available: 95 };
    refused::<u16>(&mut memory, &small(), beyond.into(), Some(ArrayError::TooLarge));
    let far = view(90, [(1, 0), (1, 0), (1, 0), (1, 0), (4, 2)], 2);
    let offset = 90;
    let len = 8;
    let borrowed = AccessError::OutOfBounds { allocation: 0, offset, len, available: 95 };
    refused::<u16>(&mut memory, &far, borrowed.into(), Some(borrowed.into()));

    // Absurd sizes neither overflow nor allocate.
    let huge = ArrayError::TooLarge;
    for dims in [
        [(1 << 40, 1 << 40), (1, 0), (1, 0), (1, 0), (4, 2)],
        [(1 << 40, 8), (1 << 40, 8), (0, 0), (1, 0), (4, 2)],
        [(2, u64::MAX), (1, 0), (1, 0), (1, 0), (4, 2)],
    ] {
        refused::<u16>(&mut memory, &view(0, dims, 2), huge, Some(huge));
    }
    let last = view(u64::MAX - 1, [(1, 0); 5], 2);
    refused::<u16>(&mut memory, &last, huge, Some(huge));
}

#[test]
fn an_array_may_be_empty() {
    let mut memory = Memory::allocate(&[96]).unwrap();
    for axis in [Axis::Layer, Axis::Block, Axis::Content(0)] {
        let view = small().narrow(axis, 1..1);
        assert!(memory.array_mut::<u16>(&view).unwrap().is_empty());
        assert!(memory.to_array::<u16>(&view).unwrap().is_empty());
    }
}

#[test]
fn layers_in_allocations_of_their_own_are_borrowed_one_by_one() {
    let mut memory = Memory::allocate(&[48, 48]).unwrap();
    let layers = view(0, [(2, FAR), (2, 24), (3, 8), (1, 8), (4, 2)], 2);
    let several = ArrayError::SeveralAllocations { first: 0, last: 1 };
    refused::<u16>(&mut memory, &layers, several, None);
    for layer in 0..2 {
        let layer = layers.narrow(Axis::Layer, layer..layer + 1);
        let mut array = memory.array_mut::<u16>(&layer).unwrap();
        assert_eq!(array.shape(), [1, 2, 3, 1, 4]);
        array.fill(1 + u16::from(layer.offset > 0));
    }
    let copy = memory.to_array::<u16>(&layers).unwrap();
    assert!(copy.slice(s![0, .., .., .., ..]).iter().all(|&value| value == 1));
    assert!(copy.slice(s![1, .., .., .., ..]).iter().all(|&value| value == 2));
}

#[test]
fn content_axes_that_do_not_follow_one_another_are_only_copied() {
    // Taps outside of channels: [channel, tap] of two channels and three taps, and of one channel of two.
    let mut taps = view(0, [(1, 0), (1, 0), (1, 0), (1, 0), (2, 2)], 2);
    let tap = Dim { axis: Axis::Content(1), extent: 3, stride: 4 };
    taps.dims.insert(5, tap);
    let mut memory = Memory::allocate(&[12]).unwrap();
    memory.write(0, bytemuck::bytes_of(&[0u16, 1, 2, 3, 4, 5])).unwrap();
    let content = ArrayError::Content { axis: Axis::Content(0) };
    refused::<u16>(&mut memory, &taps, content, None);
    let copy = memory.to_array::<u16>(&taps).unwrap();
    assert_eq!(copy.as_slice().unwrap(), [0, 2, 4, 1, 3, 5]);
    let one = taps.narrow(Axis::Content(0), 1..2);
    let array = memory.array_mut::<u16>(&one).unwrap();
    assert_eq!(array.iter().copied().collect::<Vec<_>>(), [1, 3, 5]);
}

#[test]
fn memory_that_others_may_hold_is_not_borrowed() {
    let mut memory = Memory::allocate(&[96]).unwrap();
    let clone = memory.clone();
    assert_eq!(memory.array_mut::<u16>(&small()).unwrap_err(), ArrayError::Shared);
    assert!(memory.to_array::<u16>(&small()).is_ok());
    drop(clone);
    assert!(memory.array_mut::<u16>(&small()).is_ok());

    // The bytes belong to another owner, with any keeper.
    let (start, len) = memory.allocation(0).unwrap();
    let keeper = Arc::new(memory);
    for access in [Access::ReadWrite, Access::Read] {
        let parts = [(start.as_ptr(), len)];
        // SAFETY: the keeper keeps the bytes, and there is no other reference.
        let foreign = unsafe { Memory::from_raw_parts(&parts, access, Some(keeper.clone())) };
        let mut foreign = foreign.unwrap();
        assert_eq!(foreign.array_mut::<u16>(&small()).unwrap_err(), ArrayError::Shared);
        // SAFETY: the keeper's bytes are not used meanwhile.
        unsafe {
            assert!(foreign.array_view::<u16>(&small()).is_ok());
            let written = foreign.array_view_mut::<u16>(&small());
            match access {
                Access::ReadWrite => written.unwrap()[[0; 5]] = 7,
                Access::Read => assert_eq!(written.unwrap_err(), AccessError::ReadOnly.into()),
            }
        }
        assert_eq!(foreign.to_array::<u16>(&small()).unwrap()[[0; 5]], 7);
    }
}

/// Arrays of keys and of values do not overlap, although their bytes alternate.
#[test]
fn arrays_of_two_components_live_side_by_side() {
    let memory = Memory::allocate(&[96]).unwrap();
    let keys = view(0, [(1, 0), (2, 48), (3, 16), (1, 0), (4, 2)], 2);
    let values = View { offset: 8, ..keys.clone() };
    // SAFETY: no byte is in both, and the memory has no other holder.
    let (mut keys, mut values) = unsafe {
        let keys = memory.array_view_mut::<u16>(&keys).unwrap();
        (keys, memory.array_view_mut::<u16>(&values).unwrap())
    };
    keys.fill(1);
    values.fill(2);
    keys += 2;
    assert!(keys.iter().all(|&key| key == 3) && values.iter().all(|&value| value == 2));
}

#[derive(Clone, Debug)]
struct Case {
    /// `L`, `B`, `S`, `H`, `C`, outermost first.
    order: Vec<char>,
    per_layer: bool,
    offset: u64,
    /// Layers, blocks, states and heads of a rank.
    extents: [u64; 4],
    key: u64,
    value: u64,
}

impl Case {
    fn deployment(&self) -> Deployment {
        let [layers, blocks, states, heads] = self.extents;
        let order: String = self.order.iter().collect();
        let document = format!(
            r#"{{"schema": "transload.deployment/1", "tp": 2, "block_size": {states}, "num_blocks": {blocks},
            "order": "{order}", "group": [{{"name": "attn", "layers": "0-{}", "offset": {}, "allocation": "{}",
            "spec": [{{"kind": "attention", "heads": {}, "head_dim": {}, "v_head_dim": {}, "dtype": "i32"}}]}}]}}"#,
            layers - 1,
            self.offset,
            if self.per_layer { "per_layer" } else { "one" },
            2 * heads,
            self.key,
            self.value,
        );
        Deployment::from_value(&serde_json::from_str::<Value>(&document).unwrap()).unwrap()
    }

    /// Returns an element's address, of keys (component 0) or of values (1), which follow them in the content.
    fn address(&self, component: usize, at: [usize; 5]) -> u64 {
        let [l, b, s, h, c] = at.map(|position| position as u64);
        let [layers, blocks, states, heads] = self.extents;
        let content = c + if component == 1 { self.key } else { 0 };
        let mut index = 0;
        for letter in &self.order {
            let (position, extent) = match letter {
                'L' if self.per_layer => (0, 1),
                'L' => (l, layers),
                'B' => (b, blocks),
                'S' => (s, states),
                'H' => (h, heads),
                _ => (content, self.key + self.value),
            };
            index = index * extent + position;
        }
        let allocation = if self.per_layer { l } else { 0 };
        (allocation << 44) + self.offset + 4 * index
    }

    fn oracle(&self, memory: &Memory, component: usize) -> Array5<i32> {
        let [l, b, s, h] = self.extents.map(|extent| extent as usize);
        let c = [self.key, self.value][component] as usize;
        Array5::from_shape_fn((l, b, s, h, c), |(l, b, s, h, c)| {
            let mut bytes = [0; 4];
            let address = self.address(component, [l, b, s, h, c]);
            memory.read(address, &mut bytes).unwrap();
            i32::from_ne_bytes(bytes)
        })
    }
}

fn case() -> impl Strategy<Value = Case> {
    let order = Just(vec!['L', 'B', 'S', 'H', 'C']).prop_shuffle();
    let extents = [1..4u64, 1..5, 1..5, 1..4];
    let numbers = (any::<bool>(), 0..4u64, extents, 1..5u64, 1..5u64);
    (order, numbers).prop_map(|(order, (per_layer, skipped, extents, key, value))| Case {
        order,
        per_layer,
        offset: 4 * skipped,
        extents,
        key,
        value,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn every_element_is_where_the_oracle_says(case in case(), seed: u32) {
        let deployment = case.deployment();
        let placement = deployment.groups()[0].placement(0);
        let len = placement.allocation_bytes as usize;
        let mut memory = Memory::allocate(&vec![len; placement.allocations as usize]).unwrap();
        for allocation in 0..placement.allocations {
            let words = (0..len as u32).map(|word| word.wrapping_mul(0x9e37_79b9) ^ seed);
            let words: Vec<u32> = words.map(|word| word.rotate_left(allocation as u32)).collect();
            let bytes = &bytemuck::cast_slice(&words)[..len];
            memory.write(allocation << 44, bytes).unwrap();
        }
        for (component, meta) in make_meta_kv_cache(&deployment, Rank(1))[0].iter().enumerate() {
            let expected = case.oracle(&memory, component);
            prop_assert_eq!(&memory.to_array::<i32>(&meta.view).unwrap(), &expected);
            match memory.array_mut::<i32>(&meta.view) {
                Ok(array) => prop_assert_eq!(array, &expected),
                Err(error) => {
                    let last = placement.allocations as usize - 1;
                    prop_assert!(last > 0);
                    prop_assert_eq!(error, ArrayError::SeveralAllocations { first: 0, last });
                }
            }
            for layer in 0..case.extents[0] {
                let one = meta.view.narrow(Axis::Layer, layer..layer + 1);
                let mut array = memory.array_mut::<i32>(&one).unwrap();
                let part = layer as usize..layer as usize + 1;
                prop_assert_eq!(&array, &expected.slice(s![part, .., .., .., ..]));
                array.mapv_inplace(|value| !value);
            }
            prop_assert_eq!(case.oracle(&memory, component), expected.mapv(|value| !value));
        }
    }
}
