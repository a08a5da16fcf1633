/work/h/int/generator/target/rendered/debug/deps/contract-bd4da5d91e68d711.d: tests/contract/main.rs

/work/h/int/generator/target/rendered/debug/deps/contract-bd4da5d91e68d711: tests/contract/main.rs

tests/contract/main.rs:
