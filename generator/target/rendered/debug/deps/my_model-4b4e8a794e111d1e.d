/work/h/int/generator/target/rendered/debug/deps/my_model-4b4e8a794e111d1e.d: src/main.rs

/work/h/int/generator/target/rendered/debug/deps/libmy_model-4b4e8a794e111d1e.rmeta: src/main.rs

src/main.rs:
