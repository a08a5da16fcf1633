//! An image of any size is translated.

mod job;

use std::path::Path;

use clap::Parser;
use image::{GenericImageView, Rgb, RgbImage};
use kiln_engine::report::Report;
use training::{
    cli::{Args, Command},
    infer::{infer, read_inputs},
    train::train,
};

use job::{on_own_thread, set_up};

fn write(path: &Path, width: u32, height: u32) {
    let picture = RgbImage::from_fn(width, height, |x, y| Rgb([x as u8, y as u8, 99]));
    picture.save(path).unwrap();
}

#[test]
fn translations_have_the_size_of_their_images_in_fours() {
    on_own_thread(|| {
        let output = tempfile::tempdir()?;
        let folder = output.path().to_string_lossy().into_owned();
        let image = output.path().join("stripes.jpeg");
        write(&image, 30, 21);
        let options = ["--output-dir", &folder, "--filters", "2", "--epochs", "1"];
        let options = [&options[..], &["--steps-per-epoch", "1", "--replicas", "1"]].concat();
        let job = set_up(&options)?;
        train(
            &job.args,
            &job.datasets,
            &mut Report::new(&job.args.options)?,
        )?;
        let table = output
            .path()
            .join("table.csv")
            .to_string_lossy()
            .into_owned();
        let image = image.to_string_lossy().into_owned();
        let infers = ["test", "infer", &image, "--output", &table];
        let args = Args::try_parse_from(infers.iter().chain(&options))?;
        let Some(Command::Infer(files)) = &args.command else {
            panic!("{args:?}");
        };
        infer(&args, files)?;
        let translation = image::open(output.path().join("translations/stripes.png"))?;
        assert_eq!(translation.dimensions(), (28, 20));
        let table = std::fs::read_to_string(table)?;
        assert!(table.starts_with("file,index,cycle_error\n"), "{table}");
        let other = output
            .path()
            .join("elsewhere/stripes.png")
            .to_string_lossy()
            .into_owned();
        let infers = ["test", "infer", &image, &other];
        let args = Args::try_parse_from(infers.iter().chain(&options))?;
        let Some(Command::Infer(files)) = &args.command else {
            panic!("{args:?}");
        };
        let error = infer(&args, files).unwrap_err().to_string();
        assert!(error.contains("both translations would be"), "{error}");
        Ok(())
    });
}

#[test]
fn an_image_that_is_too_small_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.png");
    write(&path, 40, 15);
    let error = read_inputs(&path).unwrap_err().to_string();
    assert!(
        error.ends_with("small.png has 40 x 15 pixels, and at least 16 x 16 are needed"),
        "{error}"
    );
}
