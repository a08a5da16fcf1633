/work/h/int/generator/target/rendered/debug/deps/my_model-510d8a4c438cde26.d: src/main.rs

/work/h/int/generator/target/rendered/debug/deps/my_model-510d8a4c438cde26: src/main.rs

src/main.rs:
