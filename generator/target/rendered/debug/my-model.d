/work/h/int/generator/target/rendered/debug/my-model: /dev/shm/tmp.abcdefghij/.tmpb5lx4u/my-model/src/main.rs
