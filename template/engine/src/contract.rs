//! Checks for the contract tests of a project, on the pictures that the task draws of its examples.
//!
//! They report only what pictures prove, and pass if pictures cannot tell: constant or symmetric ones, those
//! of other sizes, crops and other deformations.

use anyhow::{Result, bail, ensure};
use burn::tensor::Tensor;

use crate::{
    picture::{Picture, Sample},
    replica::read_data,
};

/// A correlation from which on two planes are taken for the same content.
const SAME: f64 = 0.9;

/// A correlation below which, without its sign, two planes are taken for different content: an inverted
/// smooth image looks like its own flip.
const DIFFERENT: f64 = 0.7;

/// A correlation with the right channel below which the pixels of an image are in other places.
const SCRAMBLED: f64 = 0.5;

/// A flip or rotation of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Motion {
    name: &'static str,
    /// Rows become columns, before the flips.
    transposed: bool,
    flips_columns: bool,
    flips_rows: bool,
}

const fn motion(name: &'static str, [transposed, columns, rows]: [bool; 3]) -> Motion {
    Motion {
        name,
        transposed,
        flips_columns: columns,
        flips_rows: rows,
    }
}

const MOTIONS: [Motion; 8] = [
    motion("stays as it is", [false, false, false]),
    motion("is flipped horizontally", [false, true, false]),
    motion("is flipped vertically", [false, false, true]),
    motion("is rotated by 180 degrees", [false, true, true]),
    motion("is transposed", [true, false, false]),
    motion("is rotated clockwise by 90 degrees", [true, true, false]),
    motion("is rotated clockwise by 270 degrees", [true, false, true]),
    motion("is transposed about the other diagonal", [true, true, true]),
];

/// The channels of a picture, one after the other, each row by row from the top.
struct Planes {
    width: usize,
    height: usize,
    values: Vec<f32>,
}

impl Planes {
    fn of(picture: &Picture) -> Self {
        let count = picture.channels().count();
        let channel = |number: usize| {
            let bytes = picture.pixels()[number..].iter().step_by(count);
            bytes.map(|byte| f32::from(*byte))
        };
        Planes {
            width: picture.width(),
            height: picture.height(),
            values: (0..count).flat_map(channel).collect(),
        }
    }

    fn moved(&self, motion: Motion) -> Self {
        let (width, height) = match motion.transposed {
            true => (self.height, self.width),
            false => (self.width, self.height),
        };
        let source = |place: usize| {
            let (mut column, mut row) = (place % width, place / width);
            if motion.flips_columns {
                column = width - 1 - column;
            }
            if motion.flips_rows {
                row = height - 1 - row;
            }
            match motion.transposed {
                true => column * self.width + row,
                false => row * self.width + column,
            }
        };
        let channels = self.values.chunks(width * height);
        let moved = channels.flat_map(|values| (0..values.len()).map(|at| values[source(at)]));
        Planes {
            width,
            height,
            values: moved.collect(),
        }
    }

    /// The correlation of all values with those of `other`; `None` if sizes differ or either is constant.
    fn correlation(&self, other: &Planes) -> Option<f64> {
        let size = |planes: &Planes| (planes.width, planes.height, planes.values.len());
        match size(self) == size(other) {
            true => correlation(&self.values, &other.values),
            false => None,
        }
    }

    /// The only motion that explains `after`, if there is one.
    fn motion_to(&self, after: &Planes) -> Option<Motion> {
        let correlations = MOTIONS.map(|motion| self.moved(motion).correlation(after));
        let best = (0..MOTIONS.len()).max_by(|one, other| {
            let [one, other] = [one, other].map(|at| correlations[*at].unwrap_or(-1.0));
            one.total_cmp(&other)
        })?;
        let is_only = (0..MOTIONS.len())
            .filter(|at| *at != best)
            .all(|at| correlations[at].is_none_or(|value| value.abs() < DIFFERENT));
        (correlations[best]? >= SAME && is_only).then_some(MOTIONS[best])
    }
}

/// Pearson's correlation; `None` if either list is constant.
fn correlation(left: &[f32], right: &[f32]) -> Option<f64> {
    let mean =
        |values: &[f32]| values.iter().map(|x| f64::from(*x)).sum::<f64>() / values.len() as f64;
    let (of_left, of_right) = (mean(left), mean(right));
    let [mut products, mut lefts, mut rights] = [0.0; 3];
    for (left, right) in left.iter().zip(right) {
        let (left, right) = (f64::from(*left) - of_left, f64::from(*right) - of_right);
        products += left * right;
        lefts += left * left;
        rights += right * right;
    }
    let scale = (lefts * rights).sqrt();
    (scale > f64::EPSILON * left.len() as f64).then(|| products / scale)
}

/// Checks that all panels of a sample, such as an image and its mask, are flipped or rotated alike by an
/// augmentation, as far as pictures can tell.
///
/// # Errors
/// Two panels have moved in different ways.
pub fn ensure_panels_move_together(before: &Sample, after: &Sample) -> Result<()> {
    // A motion is found by eight comparisons of all pixels.
    if before.panels().len() < 2 {
        return Ok(());
    }
    let panels = before.panels().iter().zip(after.panels()).enumerate();
    let motions = panels.filter_map(|(number, (before, after))| {
        let motion = Planes::of(before).motion_to(&Planes::of(after))?;
        Some((number + 1, motion))
    });
    let motions: Vec<_> = motions.collect();
    let Some(((first, expected), others)) = motions.split_first() else {
        return Ok(());
    };
    for (number, motion) in others {
        ensure!(
            motion == expected,
            "panel {first} of the picture of an example {}, and panel {number} {}: change all parts of an \
             example alike",
            expected.name,
            motion.name
        );
    }
    Ok(())
}

/// Checks that an image `[channels, height, width]`, on any scale, has the pixels of `picture` in their
/// places. Channels may be in another order. Returns whether they could be compared.
///
/// # Errors
/// The pixels are in other places.
pub fn ensure_image_shows_picture(image: Tensor<3>, picture: &Picture) -> Result<bool> {
    let [channels, height, width] = image.dims();
    let shown = picture.channels().count();
    let picture = Planes::of(picture);
    if channels != shown {
        return Ok(false);
    }
    if (height, width) == (picture.width, picture.height) && height != width {
        bail!(
            "images have the shape [{channels}, {height}, {width}], and pictures are {} wide and {} high: \
             are height and width exchanged?",
            picture.width,
            picture.height
        );
    }
    if (height, width) != (picture.height, picture.width) {
        return Ok(false);
    }
    let values: Vec<f32> = read_data(image)?.iter::<f32>().collect();
    let mut compared = false;
    for (number, shown) in picture.values.chunks(height * width).enumerate() {
        let planes = values.chunks(height * width);
        let correlations = planes.filter_map(|plane| correlation(plane, shown));
        let Some(best) = correlations.map(f64::abs).max_by(f64::total_cmp) else {
            continue;
        };
        compared = true;
        ensure!(
            best >= SCRAMBLED,
            "no channel of the images has the pixels of channel {number} of the pictures in their places \
             (the best correlation is {best:.2}): from [height, width, channels] to \
             [channels, height, width] it takes `permute`, and not `reshape`"
        );
    }
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::picture::Channels;

    const SIDE: usize = 24;

    /// Noise with a bright disc at a random place, and the mask of the disc.
    fn example(random: &mut StdRng) -> [Picture; 2] {
        let [x, y] = [(); 2].map(|()| random.random_range(4..SIDE as i32 - 4));
        let is_inside = |at: i32| {
            let (column, row) = (at % SIDE as i32, at / SIDE as i32);
            (column - x).pow(2) + (row - y).pow(2) <= 16
        };
        let places = 0..(SIDE * SIDE) as i32;
        let image = places.clone().flat_map(|at| {
            let base = if is_inside(at) { 200 } else { 60 };
            let colours: [u8; 3] = [(); 3].map(|()| base + random.random_range(0..40));
            colours
        });
        let image = Picture::new(SIDE, SIDE, Channels::Rgb, image.collect()).unwrap();
        let mask = places.map(|at| u8::from(is_inside(at)) * 255).collect();
        [
            image,
            Picture::new(SIDE, SIDE, Channels::Gray, mask).unwrap(),
        ]
    }

    fn moved(picture: &Picture, motion: Motion) -> Picture {
        let planes = Planes::of(picture).moved(motion);
        let (width, height) = (planes.width, planes.height);
        let size = width * height;
        let channels = planes.values.chunks(size);
        let pixels = (0..size).flat_map(|at| channels.clone().map(move |values| values[at] as u8));
        Picture::new(width, height, picture.channels(), pixels.collect()).unwrap()
    }

    fn sample([image, mask]: [Picture; 2]) -> Sample {
        Sample::new(image, "").beside(mask)
    }

    #[test]
    fn parts_that_move_apart_are_found() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut found, mut names) = (0, Vec::new());
        for number in 0..160 {
            let [image, mask] = example(&mut random);
            let before = sample([image.clone(), mask.clone()]);
            let motion = MOTIONS[number % 8];
            let alike = sample([moved(&image, motion), moved(&mask, motion)]);
            ensure_panels_move_together(&before, &alike).unwrap();
            let apart = sample([moved(&image, motion), mask]);
            if let Err(error) = ensure_panels_move_together(&before, &apart) {
                found += 1;
                names.push(error.to_string());
            }
        }
        // A disc in the middle or on a diagonal has some symmetry.
        assert!(found > 50, "{found} of 140 are found");
        assert!(names.iter().any(|name| name.starts_with(
            "panel 1 of the picture of an example is flipped horizontally, and panel 2 stays as it is"
        )));
    }

    #[test]
    fn what_pictures_cannot_tell_is_no_error() {
        let mut random = StdRng::seed_from_u64(2);
        for _ in 0..100 {
            let [image, mask] = example(&mut random);
            let before = sample([image.clone(), mask.clone()]);
            // Another example, noise, and a mask without an object.
            let other = sample(example(&mut random));
            ensure_panels_move_together(&before, &other).unwrap();
            let pixels = (0..SIDE * SIDE * 3).map(|_| random.random()).collect();
            let noise = Picture::new(SIDE, SIDE, Channels::Rgb, pixels).unwrap();
            ensure_panels_move_together(&before, &sample([noise, mask])).unwrap();
            let empty = Picture::new(SIDE, SIDE, Channels::Gray, vec![0; SIDE * SIDE]).unwrap();
            let flipped = moved(&image, MOTIONS[1]);
            let empty_before = sample([image, empty.clone()]);
            ensure_panels_move_together(&empty_before, &sample([flipped, empty])).unwrap();
        }
    }

    /// From `[height, width, channels]`.
    fn pixels(picture: &Picture) -> Tensor<3> {
        let values: Vec<f32> = picture
            .pixels()
            .iter()
            .map(|byte| f32::from(*byte))
            .collect();
        let shape = [
            picture.height(),
            picture.width(),
            picture.channels().count(),
        ];
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    #[test]
    fn pixels_in_other_places_are_found() {
        let mut random = StdRng::seed_from_u64(3);
        for _ in 0..20 {
            let [image, mask] = example(&mut random);
            let right = pixels(&image).permute([2, 0, 1]) / -127.5 + 1.0;
            assert!(ensure_image_shows_picture(right.clone(), &image).unwrap());
            assert!(ensure_image_shows_picture(right.clone().flip([0]), &image).unwrap());
            assert!(!ensure_image_shows_picture(right, &mask).unwrap());
            let scrambled = pixels(&image).reshape([3, SIDE, SIDE]);
            let error = ensure_image_shows_picture(scrambled, &image).unwrap_err();
            assert!(error.to_string().contains("it takes `permute`"), "{error}");
        }
    }

    #[test]
    fn height_and_width_that_are_exchanged_are_found() {
        let picture = Picture::new(3, 2, Channels::Gray, vec![0, 50, 9, 7, 200, 8]).unwrap();
        let right = pixels(&picture).permute([2, 0, 1]);
        assert!(ensure_image_shows_picture(right.clone(), &picture).unwrap());
        let error = ensure_image_shows_picture(right.swap_dims(1, 2), &picture).unwrap_err();
        assert!(error.to_string().contains("exchanged"), "{error}");
    }
}
