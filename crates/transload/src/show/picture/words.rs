//! What axes are called.

use std::borrow::Cow;

use transload::layout::spec::ConvLayout;
use transload::layout::{Axis, Deployment};

/// The units of a component, by the field of the document that counts them.
pub(super) fn units(field: &str) -> Cow<'_, str> {
    match field {
        "d_inner" => "channels".into(),
        field => field.replace('_', " ").into(),
    }
}

/// One of them.
pub(super) fn unit(field: &str) -> String {
    let units = units(field);
    units.strip_suffix('s').unwrap_or(&units).to_owned()
}

/// A component's name where it stands alone.
pub(super) fn component(name: &str) -> Cow<'_, str> {
    match name {
        "k" => "K".into(),
        "v" => "V".into(),
        name => name.into(),
    }
}

/// A side's own name, or the part that it plays.
pub(super) fn side(deployment: &Deployment, role: &str) -> String {
    match deployment.name() {
        "" => role.to_owned(),
        name => name.to_owned(),
    }
}

/// Which axis of a convolution is outside.
pub(super) fn conv(layout: ConvLayout) -> &'static str {
    match layout {
        ConvLayout::Ds => "DS",
        ConvLayout::Sd => "SD",
    }
}

/// One of a component's content axes, of which there are so many.
pub(super) fn content(is_conv: bool, axis: Axis, axes: usize) -> &'static str {
    match (is_conv, axis) {
        (true, Axis::Content(0)) => "channel",
        (true, Axis::Content(_)) => "tap",
        (false, Axis::Content(0)) if axes > 1 => "row",
        (false, Axis::Content(_)) => "element",
        _ => "byte",
    }
}
