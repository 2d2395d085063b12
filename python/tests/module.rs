//! The extension module that Python imports. The tests of what it does are Python's (`make python`).
//! This one makes each build of the tests build the module too, with the same features.

#[test]
fn the_module_is_built_with_the_tests_and_has_its_entry() {
    let program = std::env::current_exe().expect("a path");
    let name = format!("{}_native{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let module = std::fs::read(program.with_file_name(&name)).expect("the module beside this test");
    let entry = b"\0PyInit__native\0";
    assert!(module.windows(entry.len()).any(|part| part == entry), "{name} exports no entry");
}
