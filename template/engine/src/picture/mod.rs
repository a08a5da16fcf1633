//! Pictures of samples and results, as PNG files, and learning curves, as SVG files.

pub mod curves;
pub(crate) mod rates;
pub(crate) mod runs;
pub(crate) mod slices;

use std::{ops::Range, path::Path};

use anyhow::{Result, bail, ensure};
use burn::tensor::Tensor;

use crate::{device::read_data, files::whole_file};

/// The channels of a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// One byte: 0 is black, 255 is white.
    Gray,
    /// Three bytes: red, green, blue.
    Rgb,
}

impl Channels {
    /// Bytes per pixel.
    pub fn count(self) -> usize {
        match self {
            Channels::Gray => 1,
            Channels::Rgb => 3,
        }
    }
}

/// A picture with 8 bits per channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    channels: Channels,
    /// Row by row from the top, with interleaved channels.
    pixels: Vec<u8>,
}

impl Picture {
    /// A picture of `pixels`: row by row from the top, with interleaved channels.
    ///
    /// # Errors
    /// The picture is empty, or the number of bytes is not height x width x channels.
    pub fn new(width: usize, height: usize, channels: Channels, pixels: Vec<u8>) -> Result<Self> {
        ensure!(
            width > 0 && height > 0,
            "a picture of {width} x {height} pixels is empty"
        );
        ensure!(
            pixels.len() == width * height * channels.count(),
            "a picture of {width} x {height} pixels with {} channels needs {} bytes, not {}",
            channels.count(),
            width * height * channels.count(),
            pixels.len()
        );
        Ok(Picture {
            width,
            height,
            channels,
            pixels,
        })
    }

    /// A picture of `values` `[channels, height, width]`, one channel for grey and three for RGB.
    ///
    /// `range` has the values of black and of full brightness, such as `0.0..1.0` or `-1.0..1.0`. Values
    /// outside are clamped; NaN is black.
    ///
    /// # Errors
    /// The number of channels is not 1 or 3, or the picture or range is empty.
    pub fn from_tensor(values: Tensor<3>, range: Range<f32>) -> Result<Self> {
        let [channels, height, width] = values.dims();
        let channels = match channels {
            1 => Channels::Gray,
            3 => Channels::Rgb,
            other => bail!("a picture has 1 channel (grey) or 3 (RGB), not {other}"),
        };
        ensure!(
            range.start < range.end,
            "the range of a picture is empty: {range:?}"
        );
        let scale = 255.0 / (range.end - range.start);
        let values = read_data(values.permute([1, 2, 0]))?; // [height, width, channels]
        // `as` saturates at 0 and 255.
        let byte = |value: f32| ((value - range.start) * scale).round() as u8;
        let pixels = values.iter::<f32>().map(byte).collect();
        Picture::new(width, height, channels, pixels)
    }

    /// Width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The channels of a pixel: grey or RGB.
    pub fn channels(&self) -> Channels {
        self.channels
    }

    /// The bytes, row by row from the top, with interleaved channels.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The bytes of a PNG file.
    ///
    /// # Errors
    /// The picture is too large for the format.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let (width, height) = (u32::try_from(self.width)?, u32::try_from(self.height)?);
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_color(match self.channels {
            Channels::Gray => png::ColorType::Grayscale,
            Channels::Rgb => png::ColorType::Rgb,
        });
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(bytes)
    }

    /// Writes a PNG file atomically.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_png(&self, path: &Path) -> Result<()> {
        whole_file::write(path, self.to_png()?)
    }

    /// The color of a pixel as RGB.
    fn rgb(&self, x: usize, y: usize) -> [u8; 3] {
        let start = (y * self.width + x) * self.channels.count();
        match self.channels {
            Channels::Gray => [self.pixels[start]; 3],
            Channels::Rgb => [0, 1, 2].map(|channel| self.pixels[start + channel]),
        }
    }
}

/// An example as captioned panels: its image first, then related pictures, such as a segmentation mask.
///
/// An augmentation that moves the image must move all panels:
/// [`ensure_panels_move_together`](crate::contract::ensure_panels_move_together) checks this. Images that
/// are augmented separately, such as those of unpaired translation, belong into one panel: join them with
/// [`sheet`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// At least one.
    panels: Vec<Picture>,
    caption: String,
}

impl Sample {
    /// A sample of one panel: the image of an example.
    pub fn new(picture: Picture, caption: impl Into<String>) -> Self {
        Sample {
            panels: vec![picture],
            caption: caption.into(),
        }
    }

    /// Adds a panel on the right, such as a mask. Its size and channels may differ from the image.
    #[must_use]
    pub fn beside(mut self, panel: Picture) -> Self {
        self.panels.push(panel);
        self
    }

    /// The panels from left to right, at least one.
    pub fn panels(&self) -> &[Picture] {
        &self.panels
    }

    /// The line below the panels.
    pub fn caption(&self) -> &str {
        &self.caption
    }

    /// Joins the panels side by side, with white gaps. The result is grey if all panels are.
    pub fn joined(&self) -> Picture {
        let height = self.panels.iter().map(Picture::height).max().unwrap_or(1);
        let gap = height.div_ceil(GAPS_IN_HEIGHT);
        let widths: usize = self.panels.iter().map(Picture::width).sum();
        let width = widths + gap * (self.panels.len() - 1);
        let mut canvas = Canvas::new(width, height, common_channels(&self.panels));
        let mut left = 0;
        for panel in &self.panels {
            canvas.paste(panel, left, 0, 1);
            left += panel.width + gap;
        }
        canvas.into()
    }
}

/// Ratio of the height of a sample to the gap between its panels.
const GAPS_IN_HEIGHT: usize = 28;

/// Margin in pixels between and around the pictures of a sheet.
const MARGIN: usize = 8;

/// Approximate size in pixels to which smaller pictures are enlarged.
const VISIBLE: usize = 96;

const PAPER: u8 = 255;
const INK: u8 = 64;

/// Arranges pictures in rows of `columns`, each with its caption below.
///
/// Small pictures are enlarged by a common integer factor, so that pixels are sharp squares. `captions` is
/// empty or has one entry per picture; letters are drawn as capitals, characters missing in the font as
/// boxes, and text wider than the picture is cut off. The sheet is grey if all pictures are.
///
/// # Errors
/// There is no picture or column, or the number of captions differs.
pub fn sheet(pictures: &[Picture], columns: usize, captions: &[String]) -> Result<Picture> {
    lay_out(pictures, columns, captions, longest_side(pictures))
}

/// Arranges samples as [`sheet`] does, the panels of each side by side with its caption below.
///
/// # Errors
/// There is no sample or column.
pub fn sample_sheet(samples: &[Sample], columns: usize) -> Result<Picture> {
    let pictures: Vec<Picture> = samples.iter().map(Sample::joined).collect();
    let captions: Vec<String> = samples.iter().map(|one| one.caption.clone()).collect();
    let sides = samples.iter().map(|one| longest_side(&one.panels));
    lay_out(&pictures, columns, &captions, sides.max().unwrap_or(1))
}

fn longest_side(pictures: &[Picture]) -> usize {
    let sides = pictures.iter().map(|one| one.width.max(one.height));
    sides.max().unwrap_or(1)
}

/// [`sheet`] with an enlargement for pictures of `side` pixels.
fn lay_out(
    pictures: &[Picture],
    columns: usize,
    captions: &[String],
    side: usize,
) -> Result<Picture> {
    ensure!(!pictures.is_empty(), "a sheet needs at least one picture");
    ensure!(columns > 0, "a sheet needs at least one column");
    ensure!(
        captions.is_empty() || captions.len() == pictures.len(),
        "{} captions for {} pictures",
        captions.len(),
        pictures.len()
    );
    let factor = (VISIBLE / side).max(1);
    let layout = Layout::new(pictures, columns, factor, !captions.is_empty());
    let mut canvas = layout.canvas(pictures);
    for (index, picture) in pictures.iter().enumerate() {
        let (left, top) = layout.place(index);
        canvas.paste(picture, left, top, layout.factor);
        if let Some(caption) = captions.get(index) {
            let caption_top = top + layout.cell_height + font::GAP;
            canvas.write(caption, left, caption_top, layout.cell_width);
        }
    }
    Ok(canvas.into())
}

/// The channels of a canvas for all `pictures`.
fn common_channels(pictures: &[Picture]) -> Channels {
    let all_gray = pictures.iter().all(|one| one.channels == Channels::Gray);
    if all_gray {
        Channels::Gray
    } else {
        Channels::Rgb
    }
}

/// The layout of a sheet, in pixels.
struct Layout {
    columns: usize,
    rows: usize,
    /// Enlargement factor of the pictures.
    factor: usize,
    cell_width: usize,
    cell_height: usize,
    caption_height: usize,
}

impl Layout {
    fn new(pictures: &[Picture], columns: usize, factor: usize, captions: bool) -> Self {
        let largest = |side: fn(&Picture) -> usize| pictures.iter().map(side).max().unwrap_or(1);
        let (width, height) = (largest(Picture::width), largest(Picture::height));
        let columns = columns.min(pictures.len());
        Layout {
            columns,
            rows: pictures.len().div_ceil(columns),
            factor,
            cell_width: width * factor,
            cell_height: height * factor,
            caption_height: if captions {
                font::GAP + font::HEIGHT
            } else {
                0
            },
        }
    }

    /// The upper left corner of a picture.
    fn place(&self, index: usize) -> (usize, usize) {
        let (row, column) = (index / self.columns, index % self.columns);
        (
            MARGIN + column * (self.cell_width + MARGIN),
            MARGIN + row * (self.cell_height + self.caption_height + MARGIN),
        )
    }

    fn canvas(&self, pictures: &[Picture]) -> Canvas {
        // The position of a picture after the last row and column is the size.
        let (width, _) = self.place(self.columns - 1);
        let (_, height) = self.place(self.rows * self.columns);
        let width = width + self.cell_width + MARGIN;
        Canvas::new(width, height, common_channels(pictures))
    }
}

/// A picture being drawn.
struct Canvas {
    width: usize,
    height: usize,
    channels: Channels,
    pixels: Vec<u8>,
}

impl From<Canvas> for Picture {
    fn from(canvas: Canvas) -> Self {
        Picture {
            width: canvas.width,
            height: canvas.height,
            channels: canvas.channels,
            pixels: canvas.pixels,
        }
    }
}

impl Canvas {
    /// An empty canvas.
    fn new(width: usize, height: usize, channels: Channels) -> Self {
        Canvas {
            width,
            height,
            channels,
            pixels: vec![PAPER; width * height * channels.count()],
        }
    }

    fn set(&mut self, x: usize, y: usize, rgb: [u8; 3]) {
        let count = self.channels.count();
        let start = (y * self.width + x) * count;
        self.pixels[start..start + count].copy_from_slice(&rgb[..count]);
    }

    fn square(&mut self, left: usize, top: usize, side: usize, rgb: [u8; 3]) {
        for y in top..top + side {
            for x in left..left + side {
                self.set(x, y, rgb);
            }
        }
    }

    /// Draws a picture, enlarged by `factor`.
    fn paste(&mut self, picture: &Picture, left: usize, top: usize, factor: usize) {
        for y in 0..picture.height {
            for x in 0..picture.width {
                let (left, top) = (left + x * factor, top + y * factor);
                self.square(left, top, factor, picture.rgb(x, y));
            }
        }
    }

    /// Writes a line, cut off at `width`.
    fn write(&mut self, text: &str, left: usize, top: usize, width: usize) {
        for (index, character) in text.chars().take(width / font::ADVANCE).enumerate() {
            for (x, y) in font::dots(character) {
                let left = left + index * font::ADVANCE + x * font::DOT;
                self.square(left, top + y * font::DOT, font::DOT, [INK; 3]);
            }
        }
    }
}

/// A font of 3 x 5 dots, for captions.
mod font {
    /// Pixels per dot.
    pub const DOT: usize = 2;
    /// Pixels from one character to the next.
    pub const ADVANCE: usize = 4 * DOT;
    /// Height of a character in pixels.
    pub const HEIGHT: usize = 5 * DOT;
    /// Pixels above a line.
    pub const GAP: usize = 2 * DOT;

    /// The glyph of characters missing in the font.
    const BOX: u16 = 0o77777;

    /// Each octal digit is a row of three dots, from the top.
    #[rustfmt::skip]
    const GLYPHS: [(char, u16); 55] = [
        ('0', 0o75557), ('1', 0o26227), ('2', 0o71747), ('3', 0o71317), ('4', 0o55711),
        ('5', 0o74717), ('6', 0o74757), ('7', 0o71122), ('8', 0o75757), ('9', 0o75717),
        ('A', 0o25755), ('B', 0o65656), ('C', 0o34443), ('D', 0o65556), ('E', 0o74647),
        ('F', 0o74644), ('G', 0o34553), ('H', 0o55755), ('I', 0o72227), ('J', 0o11152),
        ('K', 0o55655), ('L', 0o44447), ('M', 0o57755), ('N', 0o65555), ('O', 0o25552),
        ('P', 0o65644), ('Q', 0o25563), ('R', 0o65655), ('S', 0o34216), ('T', 0o72222),
        ('U', 0o55557), ('V', 0o55552), ('W', 0o55775), ('X', 0o55255), ('Y', 0o55222),
        ('Z', 0o71247), (' ', 0o00000), ('.', 0o00002), (',', 0o00024), (':', 0o02020),
        ('-', 0o00700), ('+', 0o02720), ('=', 0o07070), ('/', 0o11244), ('(', 0o24442),
        (')', 0o21112), ('%', 0o51245), ('!', 0o22202), ('?', 0o61202), ('_', 0o00007),
        ('>', 0o42124), ('<', 0o12421), ('#', 0o57575), ('\'', 0o22000), ('*', 0o05250),
    ];

    /// The dots of a character: column from the left, row from the top.
    pub fn dots(character: char) -> impl Iterator<Item = (usize, usize)> {
        let character = character.to_ascii_uppercase();
        let glyph = GLYPHS.iter().find(|(known, _)| *known == character);
        let rows = glyph.map_or(BOX, |(_, rows)| *rows);
        let places = (0..5).flat_map(|y| (0..3).map(move |x| (x, y)));
        places.filter(move |(x, y)| rows >> (14 - 3 * y - x) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::tensor::Device;

    use super::*;

    fn gray(width: usize, height: usize, value: u8) -> Picture {
        Picture::new(width, height, Channels::Gray, vec![value; width * height]).unwrap()
    }

    fn tensor(values: &[f32], dims: [usize; 3]) -> Tensor<3> {
        Tensor::<1>::from_floats(values, &Device::flex()).reshape(dims)
    }

    #[test]
    fn bytes_that_make_no_picture_are_refused() {
        let error = Picture::new(2, 2, Channels::Rgb, vec![0; 4]).unwrap_err();
        assert!(error.to_string().contains("needs 12 bytes, not 4"));
        assert!(Picture::new(0, 2, Channels::Gray, vec![]).is_err());
    }

    #[test]
    fn the_channels_of_a_tensor_become_those_of_a_pixel() {
        // Two pixels beside each other: red and half blue.
        let values = tensor(&[1.0, 0.0, 0.0, 0.0, 0.0, 0.5], [3, 1, 2]);
        let picture = Picture::from_tensor(values, 0.0..1.0).unwrap();
        assert_eq!((picture.width(), picture.height()), (2, 1));
        assert_eq!(picture.pixels(), [255, 0, 0, 0, 0, 128]);
    }

    #[test]
    fn values_are_scaled_from_their_range_and_cut_off() {
        let values = tensor(&[-1.0, 0.0, 1.0, -9.0, 9.0, f32::NAN], [1, 2, 3]);
        let picture = Picture::from_tensor(values, -1.0..1.0).unwrap();
        assert_eq!(picture.pixels(), [0, 128, 255, 0, 255, 0]);
    }

    #[test]
    fn tensors_that_are_no_pictures_are_refused() {
        let values = || tensor(&[0.0; 8], [2, 2, 2]);
        let error = Picture::from_tensor(values(), 0.0..1.0).unwrap_err();
        assert!(error.to_string().contains("not 2"), "{error}");
        let values = values().reshape([1, 2, 4]);
        assert!(Picture::from_tensor(values, 1.0..1.0).is_err());
    }

    #[test]
    fn a_png_holds_the_pixels() {
        let bytes: Vec<u8> = (0..18).collect();
        for (channels, width) in [(Channels::Gray, 9), (Channels::Rgb, 3)] {
            let picture = Picture::new(width, 2, channels, bytes.clone()).unwrap();
            let png = picture.to_png().unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(png))
                .read_info()
                .unwrap();
            let mut decoded = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut decoded).unwrap();
            assert_eq!((info.width, info.height), (width as u32, 2));
            assert_eq!(decoded, bytes);
        }
    }

    #[test]
    fn a_saved_picture_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        gray(2, 2, 0).save_png(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), gray(2, 2, 0).to_png().unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = gray(2, 2, 0).save_png(&folder.path().join("no/a.png"));
        assert!(error.unwrap_err().to_string().contains("no/a.png"));
    }

    #[test]
    fn small_pictures_are_enlarged_and_stand_in_rows() {
        let pictures: Vec<Picture> = [10, 20, 30].map(|value| gray(8, 8, value)).into();
        let sheet = sheet(&pictures, 2, &[]).unwrap();
        assert_eq!(sheet.channels(), Channels::Gray);
        assert_eq!((sheet.width(), sheet.height()), (216, 216)); // 2 x 96 and 3 margins
        let pixel = |x: usize, y: usize| sheet.pixels()[y * 216 + x];
        assert_eq!([pixel(7, 8), pixel(8, 8), pixel(103, 103)], [255, 10, 10]);
        assert_eq!([pixel(104, 50), pixel(112, 50)], [255, 20]);
        assert_eq!([pixel(8, 112), pixel(207, 207)], [30, 255]);
    }

    #[test]
    fn gray_and_rgb_pictures_share_a_sheet() {
        let red = Picture::new(1, 1, Channels::Rgb, vec![255, 0, 0]).unwrap();
        let sheet = sheet(&[gray(1, 1, 7), red], 2, &[]).unwrap();
        assert_eq!(sheet.rgb(MARGIN, MARGIN), [7; 3]);
        assert_eq!(sheet.rgb(MARGIN + 96 + MARGIN, MARGIN), [255, 0, 0]);
    }

    #[test]
    fn a_caption_stands_below_its_picture_and_is_cut_off() {
        let caption = ["1".repeat(100)];
        let sheet = sheet(&[gray(96, 96, 0)], 1, &caption).unwrap();
        let top = MARGIN + 96 + font::GAP;
        let ink = |x: usize| sheet.rgb(x, top)[0] == INK;
        // The upper row of a 1 is its middle dot, two pixels wide.
        let columns: Vec<usize> = (0..sheet.width()).filter(|x| ink(*x)).take(3).collect();
        assert_eq!(columns, [MARGIN + 2, MARGIN + 3, MARGIN + 10]);
        assert_eq!((0..sheet.width()).filter(|x| ink(*x)).count(), 12 * 2);
    }

    #[test]
    fn unknown_characters_are_boxes_and_small_letters_are_capitals() {
        assert_eq!(font::dots('é').count(), 15);
        assert!(font::dots('a').eq(font::dots('A')));
        assert!(font::dots('1').eq([
            (1, 0),
            (0, 1),
            (1, 1),
            (1, 2),
            (1, 3),
            (0, 4),
            (1, 4),
            (2, 4)
        ]));
    }

    #[test]
    fn panels_stand_side_by_side_with_space_between_and_below() {
        let sample = Sample::new(gray(2, 2, 10), "a").beside(gray(1, 1, 20));
        let joined = sample.joined();
        assert_eq!((joined.width(), joined.height()), (4, 2));
        assert_eq!(joined.channels(), Channels::Gray);
        assert_eq!(joined.pixels(), [10, 10, 255, 20, 10, 10, 255, 255]);
        assert_eq!(sample.panels(), [gray(2, 2, 10), gray(1, 1, 20)]);
    }

    #[test]
    fn a_gray_mask_stands_beside_an_rgb_image() {
        let red = Picture::new(1, 1, Channels::Rgb, vec![255, 0, 0]).unwrap();
        let joined = Sample::new(red, "").beside(gray(1, 1, 7)).joined();
        assert_eq!(joined.channels(), Channels::Rgb);
        assert_eq!(joined.pixels(), [255, 0, 0, 255, 255, 255, 7, 7, 7]);
    }

    #[test]
    fn a_sample_of_one_panel_is_that_picture() {
        assert_eq!(Sample::new(gray(3, 2, 5), "").joined(), gray(3, 2, 5));
    }

    #[test]
    fn a_sheet_of_samples_is_that_of_their_joined_panels_with_captions() {
        let samples = [1, 2]
            .map(|value| Sample::new(gray(4, 4, value), format!("{value}")).beside(gray(4, 4, 9)));
        let pictures = [samples[0].joined(), samples[1].joined()];
        let captions = samples.each_ref().map(|one| one.caption().to_string());
        let expected = lay_out(&pictures, 1, &captions, 4).unwrap();
        assert_eq!(sample_sheet(&samples, 1).unwrap(), expected);
        assert!(sample_sheet(&[], 1).is_err());
    }

    #[test]
    fn samples_are_enlarged_by_the_size_of_a_panel() {
        let sample = Sample::new(gray(48, 48, 0), "").beside(gray(48, 48, 0));
        let sheet = sample_sheet(&[sample], 1).unwrap();
        assert_eq!(sheet.width(), 2 * (48 + 2 + 48) + 2 * MARGIN);
    }

    #[test]
    fn a_sheet_that_cannot_be_is_refused() {
        let pictures = [gray(1, 1, 0)];
        assert!(sheet(&[], 1, &[]).is_err());
        assert!(sheet(&pictures, 0, &[]).is_err());
        let captions = ["a".to_string(), "b".to_string()];
        let error = sheet(&pictures, 1, &captions).unwrap_err();
        assert_eq!(error.to_string(), "2 captions for 1 pictures");
    }
}
