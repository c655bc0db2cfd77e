"""The planted bugs by which the simulation is judged: what each one is, where, and what should find it.

Each bug is one change that a developer could make, and leaves a broker that starts, takes records and
gives them to readers as long as nothing goes wrong. `unit` is a unit test that fails with the bug; "-"
means that none of its area does. tests/simulation/campaign.py plants them one after the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from penstock.broker.partitions.follower import Followers
from penstock.broker.partitions.metadata_applier import MetadataApplier
from penstock.kafka.handlers import fetch, produce
from penstock.replication.leader import Leadership
from penstock.storage import markers
from tests.simulation import bugs
from tests.simulation.planted import groups, metadata, replication, storage, transactions
from tests.simulation.planted.probe import Bug, Probe, reused

FOLDERS: Final = {  # with the unit tests of an area
    "replication": ("replication", "broker", "kafka"),
    "storage": ("storage", "broker", "records"),
    "transactions": ("transactions", "storage", "broker", "groups"),
    "groups": ("groups", "broker", "kafka"),
    "metadata": ("metadata", "broker"),
}


@dataclass(frozen=True)
class Planted:
    """One bug of the catalogue."""

    name: str
    area: str
    bug: Bug
    what: str
    where: str  # module.function
    check: str  # that should find it
    unit: str = ""  # test that fails with it; "-": none of its area; "": not tried

    @contextmanager
    def plant(self) -> Iterator[Probe]:
        probe = Probe()
        with self.bug(probe):
            yield probe


def _rows(area: str, *rows: tuple[str, Bug, str, str, str, str]) -> tuple[Planted, ...]:
    return tuple(
        Planted(name, area, bug, what, where, check, unit)
        for name, bug, what, where, check, unit in rows
    )


# fmt: off
_REPLICATION = _rows("replication",
    ("log-end-is-the-high-watermark", replication.log_end_is_the_high_watermark,
     "the leader commits without its followers", "replication.leader.Leadership.high_watermark", "high watermark", ""),
    ("new-leader-commits-all-it-has", replication.new_leader_commits_all_it_has,
     "a new leader takes its log end for the high watermark", "broker.partitions.log._begin_epoch", "high watermark", ""),
    ("consumers-read-past-the-high-watermark", replication.consumers_read_past_the_high_watermark,
     "consumers see what may be cut", "broker.partitions.log._read", "readers lose records", ""),
    ("followers-mark-passes-their-log", replication.followers_mark_passes_their_log,
     "a follower's mark is not limited by its log end", "broker.partitions.partition.learn", "high watermark", ""),
    ("cut-leaves-the-high-watermark", replication.cut_leaves_the_high_watermark,
     "the mark stays above the log end after a cut", "broker.partitions.partition._was_cut", "high watermark", ""),
    ("saved-high-watermark-is-trusted", replication.saved_high_watermark_is_trusted,
     "a saved mark counts although records below it were lost", "broker.partitions.log._surely_committed", "high watermark", "broker/partitions/test_flush_after_crash.py::test_of_a_log_that_lost_committed_records_only_what_was_synced_counts_as_committed"),
    ("unsynced-records-count", replication.unsynced_records_count,
     "flush.messages=1 does not wait for the sync", "broker.partitions.log._own_end", "acknowledged records", "broker/partitions/test_flusher.py::test_a_sync_that_ends_after_a_cut_does_not_count_and_another_one_does"),
    ("isr-expands-without-the-high-watermark", replication.isr_expands_without_the_high_watermark,
     "a follower that lacks committed records joins the ISR", "replication.leader.expanded", "ISR is complete", ""),
    ("isr-expands-before-the-epoch-start", replication.isr_expands_before_the_epoch_start,
     "a follower joins without what the leader had at its election", "replication.leader.expanded", "acknowledged records", "replication/test_leader.py::test_a_follower_joins_when_it_has_what_is_committed_and_what_was_there_when_the_epoch_began"),
    ("isr-change-counts-before-it-is-committed", reused(bugs.an_isr_change_that_counts_before_it_is_committed, (Leadership, "maximal")),
     "a proposed ISR moves the high watermark", "replication.leader.maximal", "ISR is complete", ""),
    ("min-isr-unchecked", replication.min_isr_unchecked,
     "acks=all appends with too few in sync (audit)", "broker.partitions.leading.check_in_sync", "appends below min.insync.replicas", ""),
    ("mark-moves-below-min-isr", reused(bugs.a_high_watermark_that_moves_below_min_isr, (Leadership, "high_watermark")),
     "KIP-966: the last replica commits alone", "replication.leader.high_watermark", "min.insync.replicas", ""),
    ("older-isr-counts", replication.older_isr_counts,
     "late news of the ISR overwrites newer", "replication.leader.committed", "ISR is complete", "replication/test_leader.py::test_of_answers_and_metadata_the_newest_counts_whichever_comes_first"),
    ("unanswered-isr-change-is-dropped", replication.unanswered_isr_change_is_dropped,
     "a change with a lost answer counts as refused", "broker.partitions.isr._send", "ISR is complete", "broker/partitions/test_isr.py::test_a_change_without_an_answer_stands_until_there_is_one"),
    ("isr-member-epochs-unchecked", replication.isr_member_epochs_unchecked,
     "KIP-903: epochs of proposed members are not compared (audit)", "metadata.rules.isr_changes._ineligible", "ISR is complete", ""),
    ("isr-sessions-not-compared", replication.isr_sessions_not_compared,
     "KIP-903: the write does not hang on the member's session", "metadata.rules.isr_changes._sessions", "ISR is complete", ""),
    ("fetches-of-an-old-session", reused(bugs.fetches_of_a_session_that_is_over, (fetch, "_check_session")),
     "KIP-903: neither leader nor controller knows the session", "kafka.handlers.fetch._check_session", "ISR is complete", ""),
    ("follower-sessions-not-noted", replication.follower_sessions_not_noted,
     "a restarted follower keeps its position at the leader (audit)", "replication.leader.began_session", "high watermark", "replication/test_leader.py::test_what_a_follower_had_in_an_earlier_session_does_not_count"),
    ("followers-survive-an-epoch", replication.followers_survive_an_epoch,
     "positions of an earlier epoch count", "broker.partitions.leading.lead", "high watermark", "broker/partitions/test_replication.py::test_a_leader_that_is_elected_again_forgets_what_its_followers_had"),
    ("divergence-unchecked", replication.divergence_unchecked,
     "the leader does not look where logs part", "replication.follower.diverges", "replicas differ", ""),
    ("truncation-to-the-high-watermark", reused(bugs.truncation_to_the_high_watermark, (Followers, "follow")),
     "KIP-101: a new follower cuts to its mark", "broker.partitions.follower.follow", "acknowledged records", ""),
    ("answers-of-another-time-count", replication.answers_of_another_time_count,
     "F2 is off (audit)", "replication.follower.is_current", "replicas differ", ""),
    ("answers-to-an-earlier-request-count", replication.answers_to_an_earlier_request_count,
     "an answer to an earlier request is taken (audit)", "broker.partitions.fetcher.is_told_by", "replicas differ", ""),
    ("any-answer-counts", replication.any_answer_counts,
     "both checks of fetch answers are off", "broker.partitions.fetcher", "replicas differ", ""),
    ("fetch-epochs-unchecked", replication.fetch_epochs_unchecked,
     "KIP-320: fetches of another leader epoch are answered (audit)", "broker.partitions.log.check_epoch", "epoch", ""),
    ("epoch-start-not-noted", replication.epoch_start_not_noted,
     "R1: an epoch begins with its first batch only", "storage.log.begin_epoch", "replicas differ", ""),
    ("epochs-survive-a-cut", replication.epochs_survive_a_cut,
     "epochs of batches that were cut stay", "storage.epochs.truncate_end", "epoch", ""),
    ("fetch-session-keeps-the-first-epoch", replication.fetch_session_keeps_the_first_epoch,
     "a fetch session does not update the last fetched epoch", "kafka.fetch_sessions.ask_again", "replicas differ", ""),
    ("rejected-batches-forgotten", replication.rejected_batches_forgotten,
     "a batch overtakes one that was rejected (audit: overtaken off)", "kafka.overtaken.overtaken_by", "order", ""),
    ("restarts-unnoticed-by-partitions", replication.restarts_unnoticed_by_partitions,
     "leaders do not hear of new sessions", "broker.partitions.metadata_applier._note_session", "high watermark", ""),
    ("leader-without-a-session", reused(bugs.a_leader_that_goes_on_without_a_session, (MetadataApplier, "_take_roles")),
     "B4: a leader goes on when its session is over", "broker.partitions.metadata_applier._take_roles", "fencing", ""),
    ("loss-of-power-untold", reused(bugs.a_loss_of_power_that_nobody_is_told_of, (markers, "read_last_run")),
     "E3: the controller is not told of a loss of power", "storage.markers.read_last_run", "ISR is complete", ""),
    ("leader-trusts-its-last-word-of-the-store", reused(bugs.a_leader_that_trusts_its_last_word_of_the_store, (produce, "check_contact")),
     "B5: acks=1 counts although the store is out of reach", "kafka.contact.check_contact", "fencing", ""),
)
_STORAGE = _rows("storage",
    ("checksums-ignored-at-recovery", storage.checksums_ignored_at_recovery,
     "torn batches count as whole (audit)", "storage.recovery.valid_batches", "torn bytes", ""),
    ("deleted-records-return-at-a-start", storage.deleted_records_return_at_a_start,
     "the saved log start is not looked at", "storage.opening.open_log", "deleted records", ""),
    ("snapshot-of-another-log-counts", storage.snapshot_of_another_log_counts,
     "the snapshot of producers is not compared with the log", "storage.state._is_of", "duplicates", ""),
    ("recovery-point-is-the-log-end", storage.recovery_point_is_the_log_end,
     "what came during a sync counts as synced", "storage.log.flush_end", "recovery", ""),
    ("producers-survive-a-cut", storage.producers_survive_a_cut,
     "producers keep what was cut off (audit)", "storage.log._was_truncated", "acknowledged records", ""),
    ("cut-not-announced", storage.cut_not_announced,
     "truncated_to is not written (audit)", "storage.local_log._announce", "recovery", ""),
    ("recovery-point-survives-a-cut", storage.recovery_point_survives_a_cut,
     "the recovery point stays above the log end", "storage.log.truncate_to", "recovery", ""),
    ("sync-counts-for-a-cut-log", storage.sync_counts_for_a_cut_log,
     "a sync from before a cut counts after it", "broker.partitions.flusher._count", "acknowledged records", ""),
    ("reads-go-on-where-a-cut-was", storage.reads_go_on_where_a_cut_was,
     "the read cursor survives a cut", "storage.segment.resume_before", "replicas differ", ""),
    ("syncs-do-nothing", storage.syncs_do_nothing,
     "fdatasync is never called", "storage.flush.sync", "acknowledged records", ""),
    ("names-not-synced", storage.names_not_synced,
     "directories are not synced", "storage.flush._sync_directory", "acknowledged records", ""),
    ("failed-sync-is-tried-again", storage.failed_sync_is_tried_again,
     "a second sync succeeds over lost pages", "storage.flush.sync", "acknowledged records", ""),
    ("lack-of-descriptors-is-final", storage.lack_of_descriptors_is_final,
     "EMFILE takes the directory offline (mend of finding 5)", "storage.flush.sync", "recovers", ""),
    ("failed-write-leaves-its-bytes", storage.failed_write_leaves_its_bytes,
     "a short write is not cut off", "storage.files._undo", "recovery", ""),
    ("hung-syncs-unnoticed", storage.hung_syncs_unnoticed,
     "L4: a leader with a hung disk goes on to lead", "broker.maintenance.housekeeping._watch_syncs", "producers go on", ""),
    ("closed-logs-take-writes", storage.closed_logs_take_writes,
     "requests write while the logs are closed (mend of finding 8)", "storage.log.stop_writes", "recovery", ""),
    ("retention-takes-uncommitted-records", storage.retention_takes_uncommitted_records,
     "retention passes the last stable offset", "storage.retention.count_expired", "acknowledged records", ""),
    ("followers-apply-retention", storage.followers_apply_retention,
     "each replica deletes by its own clock", "broker.maintenance.housekeeping._retain", "retention", ""),
    ("deletion-passes-the-high-watermark", storage.deletion_passes_the_high_watermark,
     "DeleteRecords takes -1 for the log end", "broker.partitions.partition.delete_records_before", "log start", ""),
    ("log-start-not-followed", storage.log_start_not_followed,
     "F3: followers keep what was deleted", "broker.partitions.partition.learn", "deleted records", ""),
    ("compaction-of-undecided-records", storage.compaction_of_undecided_records,
     "the cleaner passes the last stable offset", "storage.compaction.assess", "compaction keeps the latest", ""),
    ("aborted-records-supersede", storage.aborted_records_supersede,
     "an aborted record removes a committed one", "records.compaction._keys", "compaction keeps the latest", ""),
    ("tombstones-removed-at-once", storage.tombstones_removed_at_once,
     "delete.retention.ms is not waited for", "records.compaction._survives", "compaction keeps the latest", ""),
    ("compaction-hides-epoch-ends", storage.compaction_hides_epoch_ends,
     "no batch marks the end of an epoch", "storage.compaction.job_for", "replicas differ", ""),
    ("compaction-drops-producers", storage.compaction_drops_producers,
     "the last batch of a producer goes", "records.compaction._is_tail", "duplicates", ""),
    ("compaction-after-a-cut", storage.compaction_after_a_cut,
     "a swap does not ask whether the log was cut", "storage.compaction.is_current", "replicas differ", ""),
)
_TRANSACTIONS = _rows("transactions",
    ("duplicates-forgotten", transactions.duplicates_forgotten,
     "a batch that is sent again is appended again", "storage.producers.check", "duplicates", ""),
    ("only-the-last-batch-remembered", transactions.only_the_last_batch_remembered,
     "of five batches in flight one is known", "storage.producers.record", "duplicates", ""),
    ("sequence-gaps-accepted", transactions.sequence_gaps_accepted,
     "a batch enters before its predecessor", "storage.producers.check", "order", ""),
    ("old-producer-epochs-accepted", transactions.old_producer_epochs_accepted,
     "a fenced producer may write", "storage.producers.check", "fencing", ""),
    ("followers-know-no-producers", transactions.followers_know_no_producers,
     "followers do not note sequences", "storage.state.apply", "duplicates", ""),
    ("runs-skip-sequence-checks", transactions.runs_skip_sequence_checks,
     "of batches that arrive together the first is checked", "storage.runs._follows", "order", ""),
    ("open-transactions-are-stable", transactions.open_transactions_are_stable,
     "the last stable offset is the high watermark", "storage.log.last_stable_offset", "aborted reads", ""),
    ("markers-count-before-they-are-replicated", transactions.markers_count_before_they_are_replicated,
     "a marker decides for readers before it is committed", "storage.producers.first_undecided_offset", "aborted reads", ""),
    ("last-aborted-transaction-untold", transactions.last_aborted_transaction_untold,
     "one aborted transaction is missing in the answer", "storage.state.aborted_transactions", "aborted reads", ""),
    ("verification-left-out", transactions.verification_left_out,
     "KIP-890: records enter unverified", "broker.coordinators.transactions.check", "hanging transaction", ""),
    ("verdict-outlives-the-transaction", transactions.verdict_outlives_the_transaction,
     "KIP-890: a verdict counts after a marker", "broker.coordinators.verification.refusal", "torn transaction", ""),
    ("older-coordinators-write-markers", transactions.older_coordinators_write_markers,
     "markers of former coordinators count", "storage.producers.check_marker", "torn transaction", ""),
    ("late-markers-end-new-transactions", transactions.late_markers_end_new_transactions,
     "a repeated marker ends the next transaction", "storage.producers.has_entered", "torn transaction", ""),
    ("markers-before-the-decision", transactions.markers_before_the_decision,
     "markers go out before the decision is committed", "broker.coordinators.txn_shard._do", "torn transaction", ""),
    ("transaction-replies-before-the-commit", transactions.transaction_replies_before_the_commit,
     "producers are answered before the log has it", "broker.coordinators.txn_shard._reply", "fencing", ""),
    ("newcomers-get-the-same-epoch", transactions.newcomers_get_the_same_epoch,
     "InitProducerId does not fence", "transactions.machine._take_epoch", "fencing", ""),
    ("timeouts-do-not-fence", transactions.timeouts_do_not_fence,
     "an abort by the coordinator keeps the epoch", "transactions.machine._abort_with_new_epoch", "fencing", ""),
    ("prepared-transactions-are-left", transactions.prepared_transactions_are_left,
     "a new coordinator does not finish what was decided", "transactions.machine._loaded", "hanging transaction", ""),
    ("failed-markers-are-given-up", transactions.failed_markers_are_given_up,
     "a marker that failed is not sent again", "broker.coordinators.marker_sending._refused", "hanging transaction", ""),
    ("added-partitions-not-written", transactions.added_partitions_not_written,
     "partitions of a transaction are in memory only", "transactions.machine._add", "hanging transaction", ""),
    ("fenced-producers-may-end", transactions.fenced_producers_may_end,
     "EndTxn does not compare the epoch", "transactions.machine._end", "fencing", ""),
    ("aborted-offsets-count", transactions.aborted_offsets_count,
     "offsets of an aborted transaction count", "groups.offsets.end_transaction", "committed offsets", ""),
    ("pending-offsets-count-at-once", transactions.pending_offsets_count_at_once,
     "offsets of an open transaction count", "groups.offsets.put_pending", "committed offsets", ""),
)
_GROUPS = _rows("groups",
    ("reload-outlives-its-epoch", groups.reload_outlives_its_epoch,
     "a shard is read back twice in one epoch (mend of finding 1)", "broker.coordinators.shard_slot.wait", "committed offsets go back", ""),
    ("shards-change-before-they-look", groups.shards_change_before_they_look,
     "a shard is lost at each write below min ISR (mend of finding 7)", "broker.coordinators.shard.check_writable", "coordinator stays", ""),
    ("shards-outlive-their-leadership", groups.shards_outlive_their_leadership,
     "a former coordinator answers from its memory", "broker.coordinators.shard_slot.is_of", "committed offsets go back", ""),
    ("shards-read-to-the-high-watermark", groups.shards_read_to_the_high_watermark,
     "a new coordinator misses what is not yet committed", "broker.partitions.partition.read_all", "committed offsets go back", ""),
    ("group-replies-before-the-commit", groups.group_replies_before_the_commit,
     "OffsetCommit is acknowledged too early", "broker.coordinators.group_shard._reply", "committed offsets go back", ""),
    ("offset-fetch-reads-ahead", groups.offset_fetch_reads_ahead,
     "OffsetFetch tells of uncommitted commits", "groups.offsets.committed", "committed offsets go back", ""),
    ("unstable-offsets-are-told", groups.unstable_offsets_are_told,
     "require_stable is not held", "groups.offsets.committed", "torn transaction", ""),
    ("commits-of-former-members-count", groups.commits_of_former_members_count,
     "generation and epoch of a commit are not compared", "groups.commits.check_commit", "committed offsets go back", ""),
    ("deleted-offsets-return", groups.deleted_offsets_return,
     "tombstones of offsets are skipped", "groups.replay.apply", "deleted offsets", ""),
    ("new-topics-inherit-offsets", groups.new_topics_inherit_offsets,
     "topic ids of offsets are not compared (S1)", "groups.offsets.belongs", "deleted offsets", ""),
    ("partitions-given-before-they-are-free", groups.partitions_given_before_they_are_free,
     "KIP-848: owners are not waited for", "groups.reconcile._advance", "two owners", ""),
    ("member-epochs-unchecked", groups.member_epochs_unchecked,
     "KIP-848: a fenced member goes on", "groups.heartbeats._check_epoch", "two owners", ""),
    ("assignments-not-written", groups.assignments_not_written,
     "assignments are in memory only", "groups.heartbeats.advance", "two owners", ""),
    ("stale-syncs-count", groups.stale_syncs_count,
     "SyncGroup of an old generation counts", "groups.machine._sync_refusal", "two owners", ""),
    ("sessions-not-resumed", groups.sessions_not_resumed,
     "members that died during a failover stay", "groups.machine._loaded", "partitions without owner", ""),
)
_METADATA = _rows("metadata",
    ("any-replica-is-elected", metadata.any_replica_is_elected,
     "the first replica that runs leads", "metadata.rules.partition_rules.elected", "acknowledged records", ""),
    ("elections-keep-the-epoch", metadata.elections_keep_the_epoch,
     "C3: the leader epoch does not grow", "metadata.rules.partition_rules.settled", "epoch", ""),
    ("restarts-keep-the-epoch", metadata.restarts_keep_the_epoch,
     "C3: a restarted leader keeps its epoch", "metadata.rules.partition_rules.settled", "replicas differ", ""),
    ("eligible-replicas-stay-eligible", metadata.eligible_replicas_stay_eligible,
     "KIP-966: the ELR outlives a full ISR", "metadata.rules.partition_rules.standing_elr", "acknowledged records", ""),
    ("power-loss-counts-as-a-crash", metadata.power_loss_counts_as_a_crash,
     "E3: a replica that lost records stays eligible", "metadata.rules.registration.last_ending", "acknowledged records", ""),
    ("unclean-elections-are-not-told", metadata.unclean_elections_are_not_told,
     "followers of an unclean leader stop", "metadata.rules.partition_rules.elected", "recovers", ""),
    ("moves-end-early", metadata.moves_end_early,
     "O2: replicas go before the new ones are in sync", "metadata.rules.reassignment_rules.completed", "acknowledged records", ""),
    ("added-replicas-count-at-once", metadata.added_replicas_count_at_once,
     "O2: a new replica is in the ISR before it has the log", "metadata.rules.reassignment_rules.completed", "ISR is complete", ""),
    ("former-controllers-write", metadata.former_controllers_write,
     "C1: commits are not fenced by the office", "broker.controller.committer._transact", "fencing", ""),
    ("decisions-on-an-old-state", metadata.decisions_on_an_old_state,
     "C2: commits do not compare the state", "metadata.rules.decisions.unchanged", "ISR is complete", ""),
    ("former-controllers-write-on-an-old-state", metadata.former_controllers_write_on_an_old_state,
     "C1 and C2: commits compare nothing", "broker.controller.committer", "fencing", ""),
    ("unknown-commits-count-as-done", metadata.unknown_commits_count_as_done,
     "an ambiguous commit counts as done", "broker.controller.committer._settle", "ISR is complete", ""),
    ("reload-tells-nobody", metadata.reload_tells_nobody,
     "changes found by a reload have no effect", "broker.membership.image_feed._reload", "recovers", ""),
)
# fmt: on

CATALOGUE: Final = (*_REPLICATION, *_STORAGE, *_TRANSACTIONS, *_GROUPS, *_METADATA)
BY_NAME: Final = {planted.name: planted for planted in CATALOGUE}
