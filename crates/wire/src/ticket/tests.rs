use std::time::Duration;

use proptest::prelude::*;
use transload_plan::ids::{AgentId, ClusterName, DeploymentDigest, Direction, Incarnation, LeaseSetId, Rank};

use super::claims::MAX_HOST;
use super::*;

fn key() -> TicketKey {
    TicketKey::new(&[7; 32])
}

fn claims(ranks: usize) -> Claims {
    Claims {
        cluster: ClusterName::new("west").unwrap(),
        set: LeaseSetId([5; 16]),
        direction: Direction::Pull,
        owner: DeploymentDigest([6; 32]),
        incarnation: Incarnation::new(1_700_000_000_000, 9),
        start: 0,
        valid_tokens: 2000,
        ranks: (0..ranks)
            .map(|r| RankAddress {
                agent: AgentId::new(format!("prefill-{}-{r}", r / 8)).unwrap(),
                host: format!("prefill-{}.models.example.internal", r / 8),
                port: 7600 + r as u16 % 8,
            })
            .collect(),
        time_left: Duration::from_millis(30_000),
        audience: None,
    }
}

#[test]
fn what_was_minted_can_be_opened() {
    for audience in [
        None,
        Some(Audience::Agent(AgentId::new("decode-0").unwrap())),
        Some(Audience::Deployment(DeploymentDigest([1; 32]))),
    ] {
        let claims = Claims { audience, ..claims(4) };
        let ticket = Ticket::mint(&key(), &claims).unwrap();
        let handed_on = Ticket::from_text(ticket.expose()).unwrap();
        assert_eq!(handed_on.open(&key()).unwrap(), claims);
    }
}

#[test]
fn large_deployments_fit_and_absurd_ones_are_refused() {
    let ticket = Ticket::mint(&key(), &claims(64)).unwrap();
    assert!(ticket.expose().len() <= MAX_TICKET);
    let error = Ticket::mint(&key(), &claims(400)).unwrap_err();
    assert!(matches!(error, MintError::TooLong { ranks: 400, .. }), "{error:?}");
    assert_eq!(Ticket::mint(&key(), &claims(0)).unwrap_err(), MintError::Claims(ClaimsError::Ranks { found: 0 }));
}

#[test]
fn contradictions_are_named() {
    let mut bad = claims(2);
    bad.ranks[1].host = "a b".into();
    let error = Ticket::mint(&key(), &bad).unwrap_err();
    assert_eq!(error, MintError::Claims(ClaimsError::Host { rank: Rank(1) }));
    let mut bad = claims(2);
    bad.ranks[1].host = "x".repeat(MAX_HOST + 1);
    assert!(Ticket::mint(&key(), &bad).is_err());
    let mut bad = claims(2);
    bad.ranks[0].port = 0;
    let error = Ticket::mint(&key(), &bad).unwrap_err();
    assert_eq!(error, MintError::Claims(ClaimsError::Port { rank: Rank(0) }));
    let bad = Claims { start: 2001, ..claims(1) };
    assert!(matches!(Ticket::mint(&key(), &bad).unwrap_err(), MintError::Claims(ClaimsError::Tokens { .. })));
}

#[test]
fn another_key_and_any_changed_character_are_noticed() {
    let ticket = Ticket::mint(&key(), &claims(2)).unwrap();
    assert_eq!(ticket.open(&TicketKey::new(&[8; 32])), Err(TicketError::Forged));
    let text = ticket.expose();
    for at in 0..text.len() {
        let mut changed = text.as_bytes().to_vec();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        let opened = Ticket::from_text(&changed).and_then(|t| t.open(&key()));
        assert!(opened.is_err(), "changed at {at}");
    }
    for end in 0..text.len() {
        let opened = Ticket::from_text(&text[..end]).and_then(|t| t.open(&key()));
        assert!(opened.is_err(), "cut off at {end}");
    }
}

#[test]
fn authentic_nonsense_is_an_error() {
    let seal = |body: &[u8]| {
        let mut bytes = body.to_vec();
        bytes.extend_from_slice(mac(&key(), body).as_bytes());
        Ticket(format!("{PREFIX}{}", text::encode(&bytes)).into())
    };
    assert_eq!(seal(b"").open(&key()), Err(TicketError::Encoding));
    let mut trailing = claims(1).encode().unwrap();
    assert!(seal(&trailing).open(&key()).is_ok());
    trailing.push(0);
    assert_eq!(seal(&trailing).open(&key()), Err(TicketError::Encoding));
}

#[test]
fn nothing_secret_is_printed() {
    let ticket = Ticket::mint(&key(), &claims(1)).unwrap();
    let printed = format!("{ticket} {ticket:?} {:?} {:?}", key(), Some(&ticket));
    let body = &ticket.expose()[PREFIX.len()..];
    assert!(!(0..body.len() - 6).any(|i| printed.contains(&body[i..i + 6])), "{printed}");
    assert_eq!(ticket.to_string().len(), "ticket#01234567".len());
    assert!(printed.contains("TicketKey(..)"));
}

#[test]
fn overlong_texts_are_not_even_kept() {
    let text = format!("{PREFIX}{}", "A".repeat(MAX_TICKET));
    assert_eq!(Ticket::from_text(&text), Err(TicketError::TooLong { bytes: text.len() }));
    assert_eq!(Ticket::from_text("tl2.AAAA"), Err(TicketError::Version));
    assert_eq!(Ticket::from_text(""), Err(TicketError::Version));
}

#[test]
fn audiences_are_kept_to() {
    let (agent, deployment) = (AgentId::new("decode-0").unwrap(), DeploymentDigest([1; 32]));
    let other = AgentId::new("decode-1").unwrap();
    let mut claims = claims(1);
    assert!(claims.is_for(&agent, &deployment));
    claims.audience = Some(Audience::Agent(agent.clone()));
    assert!(claims.is_for(&agent, &deployment) && !claims.is_for(&other, &deployment));
    claims.audience = Some(Audience::Deployment(DeploymentDigest([2; 32])));
    assert!(!claims.is_for(&agent, &deployment));
}

proptest! {
    #[test]
    fn garbage_never_opens(body in "[A-Za-z0-9_-]{0,400}") {
        let opened = Ticket::from_text(&format!("{PREFIX}{body}")).and_then(|t| t.open(&key()));
        prop_assert!(opened.is_err());
    }

    #[test]
    fn authentic_garbage_is_read_strictly(body in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(Some(claims)) = Claims::decode(&body) {
            prop_assert_eq!(Claims::decode(&claims.encode().unwrap()), Ok(Some(claims)));
        }
    }
}
