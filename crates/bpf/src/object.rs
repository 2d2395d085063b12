//! The prebuilt objects, and how one is prepared before the kernel loads it.

use crate::load::LoadError;
use crate::program::Program;
use libbpf_rs::{MapType, ObjectBuilder, OpenObject};
use std::ffi::OsStr;

/// The size of `name` in the kernel's `struct tcp_congestion_ops`, final zero included.
pub(crate) const NAME_BYTES: usize = 16;

/// Every prebuilt object by its file name in `prebuilt/`.
pub const OBJECTS: [(&str, &[u8]); 6] = [
    ("hybla.bpf.o", include_bytes!("../prebuilt/hybla.bpf.o")),
    ("hybla_linux.bpf.o", include_bytes!("../prebuilt/hybla_linux.bpf.o")),
    ("laws.bpf.o", include_bytes!("../prebuilt/laws.bpf.o")),
    ("vegas.bpf.o", include_bytes!("../prebuilt/vegas.bpf.o")),
    ("westwood.bpf.o", include_bytes!("../prebuilt/westwood.bpf.o")),
    ("window.bpf.o", include_bytes!("../prebuilt/window.bpf.o")),
];

/// Opens `program` with its settings and its name filled in. The kernel is not involved yet.
pub(crate) fn prepare(
    program: &Program,
    name: &str,
    settings: &[u8],
) -> Result<OpenObject, LoadError> {
    let refused = |reason: String| LoadError::Object { program: program.title, reason };
    let mut object = ObjectBuilder::default()
        .open_memory(program.object)
        .map_err(|error| refused(error.to_string()))?;
    let mut named = false;
    let mut set = settings.is_empty();
    for mut map in object.maps_mut() {
        let is_operations = map.map_type() == MapType::StructOps;
        let is_settings = map.name() == OsStr::new(".rodata.settings");
        let Some(value) = map.initial_value_mut() else { continue };
        if is_operations {
            named = rename(value, program.built_name, name);
        } else if is_settings && value.len() == settings.len() {
            value.copy_from_slice(settings);
            set = true;
        }
    }
    if !named {
        return Err(refused(format!(
            "it holds no congestion control named {}",
            program.built_name
        )));
    }
    if !set {
        return Err(refused(format!("its settings are not {} bytes", settings.len())));
    }
    Ok(object)
}

/// Replaces the only occurrence of `old` as a whole, zero-padded name.
fn rename(value: &mut [u8], old: &str, new: &str) -> bool {
    let (old, new) = (padded(old), padded(new));
    let Some(at) = value.windows(NAME_BYTES).position(|window| window == old) else {
        return false;
    };
    value[at..at + NAME_BYTES].copy_from_slice(&new);
    true
}

/// `name` as the kernel stores it; a longer name is cut, as the kernel would.
pub(crate) fn padded(name: &str) -> [u8; NAME_BYTES] {
    let mut padded = [0; NAME_BYTES];
    for (place, byte) in padded.iter_mut().take(NAME_BYTES - 1).zip(name.bytes()) {
        *place = byte;
    }
    padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Parameters};

    #[test]
    fn only_a_whole_name_is_replaced() {
        let mut value = [7_u8; 40];
        value[8..24].copy_from_slice(&padded("midhop_hybla"));
        assert!(!rename(&mut value, "midhop_hyb", "other"));
        assert!(rename(&mut value, "midhop_hybla", "mhybla_00000001"));
        assert_eq!(&value[8..24], b"mhybla_00000001\0");
        assert_eq!((value[7], value[24]), (7, 7));
    }

    #[test]
    fn objects_are_built_with_the_default_parameters() {
        // One object serves both forms of Hybla that are not Linux's.
        for algorithm in Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::HyblaPlus) {
            let settings = Parameters::default().settings(algorithm).expect("defaults");
            let mut object = ObjectBuilder::default()
                .open_memory(Program::of(algorithm).object)
                .expect("an object");
            let built = object
                .maps_mut()
                .find(|map| map.name() == OsStr::new(".rodata.settings"))
                .and_then(|mut map| map.initial_value_mut().map(|value| value.to_vec()));
            assert_eq!(built.unwrap_or_default(), settings, "{algorithm}");
        }
    }
}
