//! `strandline inspect layer`: a layer file or the manifest of a storage node.

use std::path::Path;

use page_store::inspect::{LayerContent, LayerDescription, describe};

use super::{Inspection, labelled};
use crate::error::{Failure, Outcome};

/// Describes the layer file at `path` and verifies every checksum in it.
///
/// # Errors
/// [`Failure`] when it is no layer file, or its header, footer or index are damaged.
pub fn layer(path: &Path) -> Outcome<Inspection> {
    let layer = describe(path).map_err(Failure::from)?;
    let json = serde_json::to_value(&layer)?;
    Ok(Inspection {
        text: text(&layer),
        json,
    })
}

fn text(layer: &LayerDescription) -> String {
    let mut rows = vec![
        ("file", layer.path.display().to_string()),
        ("format version", layer.format_version.to_string()),
        ("system identifier", layer.system_identifier.to_string()),
        ("LSNs", format!("{} to {}", layer.start, layer.end)),
        ("file bytes", layer.file_bytes.to_string()),
        ("index bytes", layer.index_bytes.to_string()),
        ("pages", layer.pages.to_string()),
        ("entries", layer.entries.to_string()),
    ];
    match &layer.content {
        LayerContent::Delta {
            blocks,
            metadata,
            longest_chain,
            longest_chain_page,
        } => {
            let page = longest_chain_page.as_deref().unwrap_or("-");
            rows.insert(1, ("kind", "delta".to_owned()));
            rows.push(("blocks", blocks.to_string()));
            rows.push(("metadata versions", metadata.to_string()));
            rows.push(("longest chain", format!("{longest_chain} ({page})")));
        }
        LayerContent::Image { runs, stored, zero } => {
            rows.insert(1, ("kind", "image".to_owned()));
            rows.push(("runs", runs.to_string()));
            rows.push(("stored pages", stored.to_string()));
            rows.push(("zero pages", zero.to_string()));
        }
    }
    let mut text = labelled(&rows);
    for damage in &layer.damage {
        text.push_str(&format!("DAMAGED: {damage}\n"));
    }
    text.push_str(&format!(
        "\n{:<32}{:>10}{:>10}  blocks\n",
        "fork", "pages", "entries"
    ));
    for fork in &layer.forks {
        text.push_str(&format!(
            "{:<32}{:>10}{:>10}  {}..{}\n",
            fork.name, fork.pages, fork.entries, fork.first_block, fork.last_block
        ));
    }
    text
}
