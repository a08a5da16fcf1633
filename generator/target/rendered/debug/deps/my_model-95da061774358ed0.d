/work/h/int/generator/target/rendered/debug/deps/my_model-95da061774358ed0.d: src/main.rs

/work/h/int/generator/target/rendered/debug/deps/my_model-95da061774358ed0: src/main.rs

src/main.rs:
