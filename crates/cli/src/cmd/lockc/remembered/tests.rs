//! What is remembered, where, and who may read it.

use super::*;

fn held(key: &str, lease_id: &str) -> Held {
    Held {
        server: "http://127.0.0.1:9341".to_owned(),
        bundle: None,
        namespace: Some("default".to_owned()),
        key: key.to_owned(),
        lease_id: lease_id.to_owned(),
        fencing_token: Some(7),
        txn_id: Some("t".to_owned()),
        owner: "me".to_owned(),
        expires_at_unix_ms: 1,
    }
}

fn memory(folder: &Path) -> Memory {
    Memory::at_or_above(folder)
}

#[tokio::test]
async fn what_was_acquired_last_is_meant_unless_a_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    assert_eq!(memory.load().unwrap(), Contents::default());
    memory.remember(held("a", "L1")).await.unwrap();
    memory.remember(held("b", "L2")).await.unwrap();
    let contents = memory.load().unwrap();
    assert_eq!(contents.choose(None).unwrap().key, "b");
    assert_eq!(contents.choose(Some("a")).unwrap().lease_id, "L1");
    assert_eq!(contents.choose(Some("default/a")).unwrap().lease_id, "L1");
    assert_eq!(contents.choose(Some("/A")).unwrap().lease_id, "L1", "as the server compares");
    assert_eq!(contents.choose(Some("c")), None);
    memory.remember(held("a", "L3")).await.unwrap();
    let contents = memory.load().unwrap();
    assert_eq!(contents.held.len(), 2, "a key is held once");
    assert_eq!(contents.choose(None).unwrap().lease_id, "L3");
    memory.renewed("L3", 99).await.unwrap();
    assert_eq!(memory.load().unwrap().choose(Some("a")).unwrap().expires_at_unix_ms, 99);
    memory.forget("L3").await.unwrap();
    assert_eq!(memory.load().unwrap().choose(None).unwrap().key, "b");
}

#[tokio::test]
async fn the_file_is_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    memory.remember(held("a", "L1")).await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(memory.path()), 0o600);
    assert_eq!(mode(memory.path().parent().unwrap()), 0o700);
}

#[tokio::test]
async fn a_folder_above_is_found_and_the_nearest_counts() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a/b/c");
    std::fs::create_dir_all(&deep).unwrap();
    assert_eq!(memory(&deep).path(), deep.join(".lockc/context.json"), "none is there yet");
    memory(folder.path()).remember(held("far", "L1")).await.unwrap();
    assert_eq!(memory(&deep).load().unwrap().choose(None).unwrap().key, "far");
    Memory::at(folder.path().join("a/b/.lockc/context.json"))
        .remember(held("near", "L2"))
        .await
        .unwrap();
    assert_eq!(memory(&deep).load().unwrap().choose(None).unwrap().key, "near");
}

#[test]
fn commands_at_the_same_time_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    // Each with a runtime of its own, as commands are.
    let remember = |number: usize| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for step in 0..5 {
            let held = held(&format!("k{number}-{step}"), &format!("L{number}-{step}"));
            runtime.block_on(memory.remember(held)).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for number in 0..8 {
            let remember = &remember;
            scope.spawn(move || remember(number));
        }
    });
    assert_eq!(memory.load().unwrap().held.len(), 40, "nobody's key was lost");
}

#[tokio::test]
async fn a_turn_that_never_comes_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut memory = memory(folder.path());
    memory.patience = Duration::from_millis(50);
    memory.remember(held("a", "L1")).await.unwrap();
    let _turn = memory.turn().await.unwrap();
    let said = memory.forget("L1").await.unwrap_err().to_string();
    assert!(said.contains("locked for too long"), "{said}");
}

#[tokio::test]
async fn more_than_the_bound_is_refused() {
    let mut contents = Contents::default();
    for number in 0..HELD_MAX {
        contents.put(held(&format!("k{number}"), "L")).unwrap();
    }
    assert!(contents.put(held("one more", "L")).is_err());
    contents.put(held("k0", "L2")).unwrap();
}

#[test]
fn a_damaged_file_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(folder.path());
    std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
    for text in ["", "{", "[]", r#"{"held":[{"key":"a"}]}"#, r#"{"held":[],"more":1}"#] {
        std::fs::write(memory.path(), text).unwrap();
        let said = memory.load().unwrap_err().to_string();
        assert!(said.contains("remove it"), "{text}: {said}");
    }
}
