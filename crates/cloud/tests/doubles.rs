//! The doubles as the client of the service meets them.

mod common;

use common::{
    BUCKET, Client, conditions_hold, create, gcs, get, race_to_create, race_to_update, s3, update,
};
use futures_util::TryStreamExt;
use lockd_cloud::{Counts, Double, Flaw, GcsDouble, Op, S3Double};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStoreExt, PutPayload,
};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

#[tokio::test]
async fn s3_keeps_its_conditions() {
    let double = S3Double::start().await;
    let client = s3(&double.endpoint());
    conditions_hold(&client).await;
    assert_eq!(double.keys(BUCKET), Vec::<String>::new());
    let seen = double.requests();
    assert_eq!(seen, Counts { puts: 5, gets: 2, deletes: 1, ..Counts::default() });
    double.reset_counts();
    assert_eq!(double.requests().total(), 0);
}

#[tokio::test]
async fn gcs_keeps_its_conditions() {
    let double = GcsDouble::start().await;
    conditions_hold(&gcs(&double.endpoint())).await;
}

#[tokio::test]
async fn the_same_content_has_the_same_tag_but_another_generation() {
    let (s3_double, gcs_double) = (S3Double::start().await, GcsDouble::start().await);
    for client in [s3(&s3_double.endpoint()), gcs(&gcs_double.endpoint())] {
        let first = create(&client, "k", "A").await.unwrap();
        let second = update(&client, "k", "B", &first).await.unwrap();
        let third = update(&client, "k", "A", &second).await.unwrap();
        assert_eq!(first.e_tag, third.e_tag);
        let aba = update(&client, "k", "C", &first).await;
        assert_eq!(aba.is_ok(), first.version.is_none(), "only generations tell A from A");
    }
    let before = gcs_double.generation(BUCKET, "k").unwrap();
    gcs_double.remove(BUCKET, "k");
    gcs_double.put(BUCKET, "k", "D");
    assert!(gcs_double.generation(BUCKET, "k").unwrap() > before);
}

#[tokio::test]
async fn one_wins_a_race_unless_the_store_is_flawed() {
    let (s3_double, gcs_double) = (S3Double::start().await, GcsDouble::start().await);
    let both: [(&Double, Client); 2] =
        [(&s3_double, s3(&s3_double.endpoint())), (&gcs_double, gcs(&gcs_double.endpoint()))];
    for (double, client) in both {
        assert_eq!(race_to_create(&client, "honest").await, 1);
        assert_eq!(race_to_update(&client, "honest-update").await, 1);
        double.set_flaw(Flaw::ChecksThenWrites);
        assert!(race_to_create(&client, "racy").await > 1);
        assert!(race_to_update(&client, "racy-update").await > 1);
        double.set_flaw(Flaw::IgnoresIfNoneMatch);
        let first = create(&client, "honest", "again").await.expect("nobody looked");
        update(&client, "honest", "then", &first).await.expect("current");
        update(&client, "honest", "stale", &first).await.expect_err("looked at");
        double.set_flaw(Flaw::IgnoresIfMatch);
        update(&client, "honest", "stale", &first).await.expect("nobody looked");
        create(&client, "honest", "again").await.expect_err("looked at");
    }
}

#[tokio::test]
async fn listings_come_in_order_over_several_pages() {
    let (s3_double, gcs_double) = (S3Double::start().await, GcsDouble::start().await);
    let both: [(&Double, Client); 2] =
        [(&s3_double, s3(&s3_double.endpoint())), (&gcs_double, gcs(&gcs_double.endpoint()))];
    for (double, client) in both {
        for number in 0..2500 {
            double.put(BUCKET, &format!("n/{number:04}"), "x");
        }
        double.put(BUCKET, "n/ä b&<c>+%25", "odd");
        double.put(BUCKET, "m", "before");
        let found: Vec<ObjectMeta> =
            client.list(Some(&Path::from("n"))).try_collect().await.unwrap();
        let names: Vec<&str> = found.iter().map(|meta| meta.location.as_ref()).collect();
        assert_eq!(names, double.keys(BUCKET)[1..], "all but m");
        assert_eq!(double.requests().lists, 3);
        let offset = Path::from("n/2490");
        let rest: Vec<ObjectMeta> =
            client.list_with_offset(None, &offset).try_collect().await.unwrap();
        assert_eq!(rest.len(), 10);
    }
}

#[tokio::test]
async fn a_delimiter_makes_folders() {
    let double = S3Double::start().await;
    for key in ["a/1", "a/2", "b", "c/1/2", "c/3", "d"] {
        double.put(BUCKET, key, "x");
    }
    let all = s3(&double.endpoint()).list_with_delimiter(None).await.unwrap();
    assert_eq!(all.common_prefixes, [Path::from("a"), Path::from("c")]);
    assert_eq!(all.objects.len(), 2);
    let inside = s3(&double.endpoint()).list_with_delimiter(Some(&Path::from("c"))).await.unwrap();
    assert_eq!(inside.common_prefixes, [Path::from("c/1")]);
    assert_eq!(inside.objects[0].location, Path::from("c/3"));
}

#[tokio::test]
async fn uploads_in_parts_become_objects_or_nothing() {
    let (s3_double, gcs_double) = (S3Double::start().await, GcsDouble::start().await);
    let both: [(&Double, Client); 2] =
        [(&s3_double, s3(&s3_double.endpoint())), (&gcs_double, gcs(&gcs_double.endpoint()))];
    for (double, client) in both {
        let mut upload = client.put_multipart(&Path::from("big one")).await.unwrap();
        upload.put_part(PutPayload::from_static(b"first ")).await.unwrap();
        upload.put_part(PutPayload::from_static(b"second")).await.unwrap();
        let pending = double.uploads(BUCKET);
        assert_eq!((pending[0].key.as_str(), pending[0].parts), ("big one", 2));
        assert_eq!(double.object(BUCKET, "big one"), None);
        let done = upload.complete().await.unwrap();
        assert!(done.e_tag.unwrap().ends_with("-2\""));
        assert_eq!(get(&client, "big one").await.unwrap(), "first second");
        let mut upload = client.put_multipart(&Path::from("never")).await.unwrap();
        upload.put_part(PutPayload::from_static(b"x")).await.unwrap();
        upload.abort().await.unwrap();
        assert_eq!((double.uploads(BUCKET), double.object(BUCKET, "never")), (vec![], None));
        assert_eq!(double.requests().multipart, 7);
    }
}

#[tokio::test]
async fn reads_take_ranges_and_conditions() {
    let double = S3Double::start().await;
    let client = s3(&double.endpoint());
    let path = Path::from("k");
    let put = create(&client, "k", "0123456789").await.unwrap();
    assert_eq!(client.get_range(&path, 2..5).await.unwrap(), "234");
    let suffix = GetOptions { range: Some(GetRange::Suffix(3)), ..GetOptions::default() };
    assert_eq!(client.get_opts(&path, suffix).await.unwrap().bytes().await.unwrap(), "789");
    let unless = GetOptions { if_none_match: put.e_tag.clone(), ..GetOptions::default() };
    let same = client.get_opts(&path, unless.clone()).await;
    assert!(matches!(same, Err(Error::NotModified { .. })), "{same:?}");
    let changed = update(&client, "k", "other", &put).await.unwrap();
    assert_eq!(client.get_opts(&path, unless).await.unwrap().meta.e_tag, changed.e_tag);
    let head = client.head(&path).await.unwrap();
    assert_eq!((head.size, head.e_tag), (5, changed.e_tag));
    client.copy(&path, &Path::from("copy")).await.unwrap();
    assert_eq!(double.object(BUCKET, "copy").unwrap(), "other");
}

#[tokio::test]
async fn the_clock_of_the_store_may_be_wrong() {
    let double = S3Double::start().await;
    let client = s3(&double.endpoint());
    create(&client, "now", "x").await.unwrap();
    double.set_clock_offset(-DAY_MS);
    create(&client, "yesterday", "x").await.unwrap();
    let now = client.head(&Path::from("now")).await.unwrap().last_modified;
    let yesterday = client.head(&Path::from("yesterday")).await.unwrap().last_modified;
    let apart = (now - yesterday).num_milliseconds();
    assert!((DAY_MS - 5000..=DAY_MS + 5000).contains(&apart), "{apart}");
}

#[tokio::test]
async fn rights_can_be_missing() {
    let double = S3Double::start().await;
    let client = s3(&double.endpoint());
    create(&client, "k", "x").await.unwrap();
    for op in [Op::Put, Op::Get, Op::Head, Op::List, Op::Delete, Op::Multipart] {
        double.deny(op);
    }
    let path = Path::from("k");
    let listed: Result<Vec<ObjectMeta>, Error> = client.list(None).try_collect().await;
    let refusals = [
        create(&client, "other", "x").await.expect_err("a denied put"),
        get(&client, "k").await.expect_err("a denied get"),
        client.head(&path).await.expect_err("a denied head"),
        listed.expect_err("a denied list"),
        client.delete(&path).await.expect_err("a denied delete"),
        client.put_multipart(&path).await.expect_err("a denied upload"),
    ];
    for refusal in refusals {
        let text = format!("{refusal:?}");
        assert!(text.contains("AccessDenied") || text.contains("403"), "{text}");
    }
    double.allow(Op::Delete);
    client.delete(&path).await.unwrap();
    assert_eq!(double.object(BUCKET, "k"), None);
}
