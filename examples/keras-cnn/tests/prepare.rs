//! From images as they are stored to examples.

use training::dataset::{CLASSES, Image, prepare};

fn image(side: usize, class: Option<u8>) -> Image {
    Image {
        pixels: vec![51; side * side],
        height: side,
        width: side,
        class,
    }
}

#[test]
fn pixels_are_scaled_and_classes_become_one_hot() {
    let example = prepare(image(4, Some(3))).unwrap();
    assert_eq!(example.pixels, [0.2; 16]);
    assert_eq!(
        example.label,
        std::array::from_fn(|class| f32::from(class == 3))
    );
    let unknown = prepare(image(4, None)).unwrap();
    assert_eq!(unknown.label, [0.0; CLASSES]);
}

#[test]
fn what_the_model_cannot_take_is_refused() {
    let message = |image| prepare(image).unwrap_err().to_string();
    assert_eq!(message(image(4, Some(10))), "class 10 is none of 10");
    let error = message(image(3, None));
    assert!(error.contains("3x3") && error.contains("4x4"), "{error}");
}
