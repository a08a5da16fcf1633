use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::support::contract;

#[test]
fn the_data_card_tells_of_every_data_file() {
    contract("house.data-card", || {
        let project = Path::new(env!("CARGO_MANIFEST_DIR"));
        let card = fs::read_to_string(project.join("DATA_CARD.md")).context("no DATA_CARD.md")?;
        for file in data_files(&project.join("data"))? {
            ensure!(
                card.contains(&format!("`{file}`")),
                "DATA_CARD.md does not tell of data/{file}"
            );
        }
        Ok(())
    });
}

fn data_files(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    Ok(names
        .into_iter()
        .filter(|name| name != "README.md")
        .collect())
}
