//! Which connection loses its slot to another, and which keeps it.

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn client(number: u8) -> Option<IpAddr> {
    Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)))
}

fn join(slots: &Arc<Slots>, address: Option<IpAddr>) -> SlotGuard {
    slots.join(address, false).expect("a slot").0
}

fn count(slots: &Slots) -> usize {
    slots.open.lock().count()
}

/// Has one request, and is silent from then on.
fn speak(guard: &SlotGuard) {
    drop(guard.counter().begin().expect("its slot"));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_spoke_loses_its_place_before_one_that_did() {
    let slots = Slots::new(3, PerAddress::Auto);
    let spoken = join(&slots, Some(HERE));
    speak(&spoken);
    let (older, younger) = (join(&slots, Some(HERE)), join(&slots, Some(HERE)));
    tokio::time::advance(Duration::from_secs(60)).await;
    let (first, lost) = slots.join(Some(HERE), false).expect("a slot");
    assert_eq!(lost, Some(ConnectionStage::FirstRequest));
    older.nudged().await;
    assert!(older.is_lost() && !younger.is_lost() && !spoken.is_lost());
    let (second, _) = slots.join(Some(HERE), false).expect("a slot");
    younger.nudged().await;
    assert!(younger.is_lost() && !spoken.is_lost());
    assert_eq!(count(&slots), 3);
    drop((first, second, older, younger));
    assert_eq!(count(&slots), 1, "who lost its slot leaves none behind");
}

#[tokio::test(start_paused = true)]
async fn of_those_that_spoke_the_longest_silent_loses_its_place() {
    let slots = Slots::new(2, PerAddress::Auto);
    let (one, other) = (join(&slots, Some(HERE)), join(&slots, Some(HERE)));
    speak(&one);
    speak(&other);
    tokio::time::advance(Duration::from_secs(5)).await;
    speak(&one);
    tokio::time::advance(Duration::from_secs(5)).await;
    let (_next, lost) = slots.join(Some(HERE), false).expect("a slot");
    assert_eq!(lost, Some(ConnectionStage::Idle));
    assert!(other.is_lost() && !one.is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_request_in_progress_keeps_its_place() {
    let slots = Slots::new(2, PerAddress::Auto);
    let (one, other) = (join(&slots, Some(HERE)), join(&slots, Some(HERE)));
    let waiting = [one.counter().begin(), other.counter().begin()];
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(slots.join(Some(HERE), false).err(), Some(NoSlot));
    drop(waiting);
    assert_eq!(slots.join(Some(HERE), false).err(), Some(NoSlot), "the next request may be near");
    tokio::time::advance(SILENT_MIN).await;
    let third = join(&slots, Some(HERE));
    assert!(one.is_lost() != other.is_lost());
    assert!(third.counter().begin().is_some());
    let loser = if one.is_lost() { &one } else { &other };
    assert!(loser.counter().begin().is_none(), "a request that comes too late is not begun");
}

#[tokio::test(start_paused = true)]
async fn one_address_has_half_of_the_places_and_its_own_connections_make_room() {
    let slots = Slots::new(10, PerAddress::Auto);
    let many: Vec<SlotGuard> = (0..20).map(|_| join(&slots, client(1))).collect();
    assert_eq!(count(&slots), 5);
    assert_eq!(many.iter().filter(|guard| guard.is_lost()).count(), 15);
    let honest: Vec<SlotGuard> = (2..7).map(|number| join(&slots, client(number))).collect();
    assert!(honest.iter().all(|guard| !guard.is_lost()));
    let held: Vec<_> = many.iter().filter_map(|guard| guard.counter().begin()).collect();
    assert_eq!(held.len(), 5);
    drop(honest);
    assert_eq!(slots.join(client(1), false).err(), Some(NoSlot), "although five slots are free");
    assert!(slots.join(client(9), false).is_ok());
}

#[test]
fn connections_from_this_machine_are_bounded_only_when_asked() {
    let all = |per_address| {
        let slots = Slots::new(10, per_address);
        let seats: Vec<SlotGuard> = (0..10).map(|_| join(&slots, Some(HERE))).collect();
        seats.iter().filter(|guard| !guard.is_lost()).count()
    };
    assert_eq!(all(PerAddress::Auto), 10);
    assert_eq!(all(PerAddress::Most(3)), 3);
}

#[test]
fn an_ipv6_client_is_its_network_and_a_mapped_address_is_what_it_maps() {
    let network = |text: &str| Network::of(text.parse().expect("an address"));
    assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
    assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
    assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
}

#[test]
fn the_oldest_handshake_makes_room_when_there_are_too_many() {
    let slots = Slots::new(HANDSHAKES_MAX * 2, PerAddress::Auto);
    let seats: Vec<SlotGuard> =
        (0..HANDSHAKES_MAX).map(|_| slots.join(Some(HERE), true).expect("a slot").0).collect();
    seats[0].handshaken();
    let (_next, lost) = slots.join(Some(HERE), true).expect("a slot");
    assert_eq!(lost, None);
    let (_next, lost) = slots.join(Some(HERE), true).expect("a slot");
    assert_eq!(lost, Some(ConnectionStage::Handshake));
    assert!(seats[1].is_lost() && !seats[0].is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_overdue_without_a_first_request_and_after_long_silence() {
    let slots = Slots::new(2, PerAddress::Auto);
    let (first, idle) = (Duration::from_secs(10), Duration::from_secs(120));
    let silent = join(&slots, None);
    let begin = Instant::now();
    silent.overdue(first, idle).await;
    assert_eq!(begin.elapsed(), first);
    let spoken = join(&slots, None);
    let counter = spoken.counter();
    let request = async {
        let waits = counter.begin();
        tokio::time::sleep(Duration::from_secs(500)).await;
        drop(waits);
    };
    let begin = Instant::now();
    tokio::join!(spoken.overdue(first, idle), request);
    let took = begin.elapsed();
    let late = took.checked_sub(Duration::from_secs(620)).expect("not before its time");
    assert!(late < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn a_connection_that_joins_while_the_port_closes_is_told_to_end() {
    let slots = Slots::new(2, PerAddress::Auto);
    let before = join(&slots, None);
    slots.close();
    let after = join(&slots, None);
    before.nudged().await;
    after.nudged().await;
    assert!(!before.is_lost() && !after.is_lost());
}
