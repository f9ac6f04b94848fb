"""A task's answers and what feedback says of them, joined in SQLite over restarts.

The event loop only puts an answer into a line, with copies of small outputs; a thread writes what
stands there, once a second, in one transaction. Whoever looks an answer up has the line written
first, so that feedback may come right after the answer. The database belongs to one server.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from inferway.deployment.tasks import Canary, Feedback
from inferway.dispatch.drift_alarm import DriftAlarm, DriftWatch
from inferway.dispatch.measured import LabeledAccuracy, by_profile
from inferway.files import home_folder
from inferway.live.canary import CanaryOutcome
from inferway.live.errors import ServeError
from inferway.live.feedback import FeedbackItem, Joined, VariantAccuracy
from inferway.live.request import InferRequest, Outcome
from inferway.profiling.confidence_sequence import ConfidenceSequence
from inferway.profiling.prediction_powered import KEPT, AnswerComparison, PoweredAccuracy
from inferway.profiling.score import ScoreError, classes_of
from inferway.protocol import Signature
from inferway.protocol.inference import decode
from inferway.runtime import Arrays

_EVERY_S: Final = 1.0
# Answers in line, above which further ones are lost, and from which on they are written at once.
_MOST_IN_LINE, _MANY_IN_LINE = 8192, 1024
# Bytes of an answer's outputs that are copied; of a larger one no class is kept.
_LARGEST: Final = 16 * 1024
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, variant TEXT NOT NULL,
    model TEXT NOT NULL, at_s REAL NOT NULL, expected REAL, classes TEXT, score REAL);
CREATE TABLE IF NOT EXISTS measured (
    variant TEXT NOT NULL, model TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY (variant, model));
CREATE TABLE IF NOT EXISTS estimated (
    variant TEXT NOT NULL, model TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY (variant, model));
CREATE TABLE IF NOT EXISTS compared (
    number INTEGER PRIMARY KEY, reference TEXT NOT NULL, agrees REAL NOT NULL,
    propensity REAL NOT NULL, kept INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS powered (
    variant TEXT NOT NULL, model TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY (variant, model));
CREATE TABLE IF NOT EXISTS canaries (
    variant TEXT NOT NULL, model TEXT NOT NULL, terms TEXT NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (variant, model, terms));
CREATE TABLE IF NOT EXISTS watched (
    variant TEXT NOT NULL, model TEXT NOT NULL, state BLOB NOT NULL, PRIMARY KEY (variant, model));
"""


class ComparedAnswer(NamedTuple):
    """An answer beside that of the most accurate variant to the same request.

    Attributes
    ----------
    id
        X-Request-Id of the answer.
    agrees
        Share of its rows that are answered the same, 0..1.
    propensity
        Probability with which it was to be compared, above 0.
    reference
        What it is compared with: variant and model.
    """

    id: str
    agrees: float
    propensity: float
    reference: str


class PassedAnswer(NamedTuple):
    """An answer as another node has sent it, to a request of so many rows.

    Attributes
    ----------
    signature
        Of the task.
    rows
        Of the request.
    body, json_length
        As they came; None where no raw bytes follow the JSON.
    """

    signature: Signature
    rows: int
    body: bytes
    json_length: bytes | None

    def decoded(self) -> Arrays:
        """Read its outputs; ValueError where they are not all there, or packed."""
        length = None if self.json_length is None else int(self.json_length)
        return decode(self.signature, self.rows, self.body, length)


class ServedModel(NamedTuple):
    """A variant as it is served: which model it is, and its profile accuracy, None without one."""

    model: str
    accuracy: float | None


class ShadowCounts(msgspec.Struct):
    """Requests that were to be run on the most accurate variant too, and were not compared.

    Attributes
    ----------
    busy
        Not run, as no server of that variant was idle, or somebody waited.
    gave_way
        Stopped, as its server was given a request.
    failed
        Without an answer, or with one that cannot be compared.
    """

    busy: int = 0
    gave_way: int = 0
    failed: int = 0


class _Known(NamedTuple):
    """What feedback on a variant's model comes to."""

    sequence: ConfidenceSequence
    labeled: LabeledAccuracy | None  # Since a profile has said an accuracy
    powered: PoweredAccuracy | None = None  # Since an answer has been compared
    watch: DriftWatch | None = None  # Where drift is looked for

    @property
    def labels(self) -> int:
        """Number of labels; the sequence has those since the last alarm."""
        alarm = None if self.watch is None else self.watch.last
        return self.sequence.count + (0 if alarm is None else alarm.labels)

    def copy(self) -> _Known:
        """Copy all but the watch."""
        return _Known(
            ConfidenceSequence.unpack(self.sequence.pack()),
            None if self.labeled is None else LabeledAccuracy.unpack(self.labeled.pack()),
            None if self.powered is None else PoweredAccuracy.unpack(self.powered.pack()),
            self.watch,
        )


class _Matched(NamedTuple):
    """Feedback and the answer that it is for."""

    variant: str
    model: str
    score: float
    expected: float | None  # of the answer, by the profile that labels are compared with
    number: int
    # Where it was compared: with what, how far it agrees, the propensity, whether it is kept for
    # this label.
    reference: str | None
    agrees: float
    propensity: float
    kept: int


class _Decided(NamedTuple):
    """A decision on a canary, by variant, model and terms."""

    trial: tuple[str, ...]
    outcome: CanaryOutcome


class AnswerBook:
    """Answers of one task that wait for feedback, or have it, and what it comes to.

    `note`, `follow`, `begin` and `close` belong to the event loop; `join` and `forget` wait for the
    disk, and are called in threads.

    Parameters
    ----------
    path
        The database, made where it is missing; None keeps it in memory.
    task
        Its name, for what the log is told.
    log
        Told when the disk refuses, and when there is room again.

    Attributes
    ----------
    measured
        Accuracies by variant, of what is served.
    counted
        Accuracies that count now, by variant; those of profiles where nothing is said.
    told
        Called, a moment after `measured` has changed, by the event loop.
    watching
        Whether drift of the accuracy is looked for.
    unknown, lost
        Feedback for no answer that is kept; answers that could not be kept.
    shadows
        Counts of requests that were to be compared, and were not.

    Raises
    ------
    ServeError
        When it cannot be used: another server has it, or rights or the disk forbid it.
    """

    def __init__(self, path: Path | None, task: str, log: Any) -> None:
        self._path, self._task, self._log = path, task, log
        self._feedback, self._served = Feedback(), dict[str, ServedModel]()
        self._lock, self._line = threading.Lock(), deque[tuple[Any, ...]]()
        self._known: dict[tuple[str, str], _Known] = {}
        self._told: dict[str, VariantAccuracy] | None = None  # What `told` has been called for
        self.told: Callable[[], None] | None = None
        self._measured_of = dict[str, ServedModel]()
        self.counted: Mapping[str, float | None] = {}
        self.measured: dict[str, VariantAccuracy] = {}
        self.unknown = self.lost = 0
        self.shadows = ShadowCounts()
        self._coin = random.Random()
        self.watching = False
        # By variant, model and terms of a canary, what was decided.
        self._outcomes = dict[tuple[str, ...], CanaryOutcome]()
        self._many = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._closed = self._failing = self._stale = False
        try:
            if path is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            base = sqlite3.connect(
                ":memory:" if path is None else path,
                isolation_level=None,
                check_same_thread=False,
                timeout=0.2,
            )
            self._base = base
            base.execute("PRAGMA locking_mode = EXCLUSIVE")
            base.execute("PRAGMA journal_mode = WAL")
            base.execute("PRAGMA synchronous = NORMAL")
            base.execute("BEGIN EXCLUSIVE")
            base.execute("COMMIT")
            base.executescript(_TABLES)
            for *trial, outcome in base.execute("SELECT * FROM canaries").fetchall():
                with suppress(ValueError):
                    known = msgspec.msgpack.decode(outcome, type=CanaryOutcome)
                    self._outcomes[tuple(trial)] = known
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            if "locked" in str(error):
                reason = "another server has them"
            raise ServeError(
                f"the answers of task {task!r} cannot be kept in {path}: {reason}"
            ) from None

    def follow(
        self, feedback: Feedback, served: Mapping[str, ServedModel], *, watch: bool = False
    ) -> None:
        """Keep so many answers for so long from now on, of these variants.

        An alarm is raised where one of them drifts, if they are to be watched; that needs the extra
        ``drift``.
        """
        self._feedback, self._served, self._stale = feedback, dict(served), True
        self.watching = watch
        self.counted, self._told = {}, None
        self._many.set()

    def profile(self, variant: str) -> float | None:
        """Tell a served variant's accuracy by its profile; None where nothing says it."""
        return self._served[variant].accuracy

    @property
    def estimates(self) -> dict[str, float]:
        """Accuracies by what is measured, of the variants that have one.

        Of a variant that is another model, or has another profile, by now there is none before
        what labels say of that has been looked up.
        """
        return {
            name: one.estimate
            for name, one in self.measured.items()
            if one.estimate is not None and self._measured_of.get(name) == self._served.get(name)
        }

    def outcome(self, canary: Canary) -> CanaryOutcome | None:
        """Tell what was decided on a canary of these terms and its present model, if anything."""
        return self._outcomes.get(self._trial(canary))

    def decided(self, canary: Canary, outcome: CanaryOutcome) -> None:
        """Keep what has been decided on a canary, over restarts as well."""
        self._outcomes[self._trial(canary)] = outcome
        self._line.append(_Decided(self._trial(canary), outcome))
        self._many.set()

    def _trial(self, canary: Canary) -> tuple[str, ...]:
        terms = f"{canary.labels} labels, {canary.at_least!r} at least"
        return canary.variant, self._served[canary.variant].model, terms

    def begin(self) -> None:
        """Write answers from now on, again and again."""
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_on())

    async def close(self) -> None:
        """Write what stands in line, and let go of the database."""
        if self._closed:
            return
        self._closed = True
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        await asyncio.to_thread(self._end)

    def note(
        self,
        request: InferRequest,
        served: Mapping[str, ServedModel],
        signature: Signature | None = None,
    ) -> None:
        """Put a request that has ended into the line, if one of these variants has answered it.

        Of one that another node has sent here, that node keeps the answer. Of what another node
        has answered, the class is read by the task's signature.
        """
        if request.outcome is not Outcome.ANSWERED or self._closed:
            return
        if request.raw is not None and request.raw.path:
            return
        line, by = self._line, served.get(request.variant)
        if by is None or len(line) >= _MOST_IN_LINE:
            self.lost += 1
            return
        outputs: Any = request.outputs
        passed = request.passed
        if outputs is None and passed is not None and signature is not None:
            if len(passed.body) <= _LARGEST:
                outputs = PassedAnswer(signature, request.rows, passed.body, passed.json_length)
        elif outputs is not None:
            size = sum(array.nbytes for array in outputs.values())
            outputs = {n: a.copy() for n, a in outputs.items()} if size <= _LARGEST else None
        expected = by.accuracy
        if request.settled and expected is not None:
            counted = self.counted.get(request.variant)
            expected = by_profile(
                request.credit, expected, expected if counted is None else counted
            )
        line.append((request.id.decode("latin-1"), request.variant, *by, expected, outputs))
        if len(line) == _MANY_IN_LINE:
            self._many.set()

    def compare(self, comparison: ComparedAnswer) -> None:
        """Put a comparison into the line; that of an answer which has a label already is lost."""
        if not self._closed and len(self._line) < _MOST_IN_LINE:
            self._line.append(comparison)

    def join(self, items: Sequence[FeedbackItem]) -> Joined:
        """Take feedback for the answers that it names, all of it or nothing.

        Raises
        ------
        RefusalError
            When a label cannot be compared with its answer.
        sqlite3.Error
            When it cannot be written down.
        """
        with self._lock:
            self._write()
            matched, unknown, doubled = (
                list[_Matched](),
                list[str](),
                list[str](),
            )
            seen, since_s = set[str](), time.time() - self._feedback.keep_s
            for item in items:
                row = self._base.execute(
                    "SELECT number, variant, model, classes, score, expected, reference, agrees, "
                    "propensity, kept FROM answers LEFT JOIN compared USING (number) "
                    "WHERE id = ? AND at_s > ?",
                    (item.id, since_s),
                ).fetchone()
                if row is None:
                    unknown.append(item.id)
                elif row[4] is not None or item.id in seen:
                    doubled.append(item.id)
                else:
                    seen.add(item.id)
                    score = item.score_of(row[3])
                    matched.append(_Matched(row[1], row[2], score, row[5], row[0], *row[6:]))
            self._count(matched)
            self.unknown += len(unknown)
        return Joined(len(matched), unknown, doubled)

    def _count(self, matched: Sequence[_Matched]) -> None:
        """Write down how right answers were, with what that comes to."""
        anew, alarms = dict[tuple[str, str], _Known](), list[tuple[str, DriftAlarm]]()
        for one in matched:
            variant, model, score, expected = one[:4]
            present, key = self._served.get(variant), (variant, model)
            if present is not None and present.model == model:
                known = anew[key] if key in anew else self._find(*key).copy()
                known.sequence.add(score)
                powered, comparison = known.powered, None
                if powered is not None:
                    if one.reference == powered.reference:
                        comparison = AnswerComparison(
                            powered.reference, one.agrees, one.propensity, bool(one.kept)
                        )
                        powered.label(score, one.agrees, one.propensity, kept=comparison.kept)
                    else:
                        powered.label(score)
                if expected is not None and known.labeled is not None:
                    known.labeled.add(score, expected, comparison)
                anew[key], alarm = self._watch(known, score, expected)
                if alarm is not None:
                    alarms.append((variant, alarm))
        try:
            self._keep(matched, anew)
        except sqlite3.Error:
            for key in anew:  # watches have been changed in place: these are read again
                self._known.pop(key, None)
            raise
        self._known |= anew
        for variant, alarm in alarms:
            said = {"before": round(alarm.before, 4), "after": round(alarm.after, 4)}
            self._log.warning(
                "drift", task=self._task, variant=variant, labels=alarm.labels, **said
            )
        self._measure()

    def _watch(
        self, known: _Known, score: float, expected: float | None
    ) -> tuple[_Known, DriftAlarm | None]:
        """Have a label looked at for drift; after an alarm, what is known begins anew."""
        watch = known.watch
        if watch is None or not self.watching:
            return known, None
        alarm = watch.add(score, expected, time.time(), known.labels)
        if alarm is None:
            return known, None
        labeled = known.labeled
        if labeled is not None:
            labeled = watch.relabeled(labeled.profile)
        return _Known(ConfidenceSequence(), labeled, None, watch), alarm

    def _keep(self, matched: Sequence[_Matched], anew: Mapping[tuple[str, str], _Known]) -> None:
        """Write down scores of answers, and what is known by them, in one transaction."""
        with self._base:
            self._base.execute("BEGIN")
            self._base.executemany(
                "UPDATE answers SET score = ? WHERE number = ?",
                [(one.score, one.number) for one in matched],
            )
            for table, states in (
                ("measured", [(*key, one.sequence.pack()) for key, one in anew.items()]),
                (
                    "watched",
                    [
                        (*key, one.watch.pack())
                        for key, one in anew.items()
                        if one.watch is not None
                    ],
                ),
            ):
                self._base.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", states)
            self._keep_joint(anew)
            # Comparisons begin anew with an alarm, too.
            self._base.executemany(
                "DELETE FROM powered WHERE variant = ? AND model = ?",
                [key for key, one in anew.items() if one.powered is None],
            )

    def _keep_joint(self, anew: Mapping[tuple[str, str], _Known]) -> None:
        """Write down what is known by labels and comparisons together."""
        self._base.executemany(
            "INSERT OR REPLACE INTO estimated VALUES (?, ?, ?)",
            [(*key, one.labeled.pack()) for key, one in anew.items() if one.labeled is not None],
        )
        self._base.executemany(
            "INSERT OR REPLACE INTO powered VALUES (?, ?, ?)",
            [(*key, one.powered.pack()) for key, one in anew.items() if one.powered is not None],
        )

    def forget(self, identity: str) -> bool:
        """Delete an answer and its feedback; whether there was one.

        The accuracy that it has been counted in stays: who could choose which to take out could
        choose the accuracy.

        Raises
        ------
        sqlite3.Error
            When it cannot be deleted.
        """
        with self._lock:
            self._write()
            with self._base:
                self._base.execute("BEGIN")
                self._base.execute(
                    "DELETE FROM compared WHERE number = (SELECT number FROM answers WHERE id = ?)",
                    (identity,),
                )
                gone = self._base.execute("DELETE FROM answers WHERE id = ?", (identity,)).rowcount
        return gone > 0

    def _find(self, variant: str, model: str) -> _Known:
        key = variant, model
        if key not in self._known:
            measured, estimated, joint = (
                self._state(table, key) for table in ("measured", "estimated", "powered")
            )
            labeled = powered = None
            if joint is not None:
                with suppress(ValueError):
                    powered = PoweredAccuracy.unpack(joint)
            if estimated is not None:
                with suppress(ValueError):  # what another version has written is begun anew
                    labeled = LabeledAccuracy.unpack(estimated)
            self._known[key] = _Known(
                ConfidenceSequence() if measured is None else ConfidenceSequence.unpack(measured),
                labeled,
                powered,
            )
        known = self._known[key]
        if self.watching and known.watch is None:
            watch, watched = None, self._state("watched", key)
            if watched is not None:
                with suppress(ValueError):
                    watch = DriftWatch.unpack(watched)
            if watch is None:
                profile = self._served[variant].accuracy if variant in self._served else None
                if known.labeled is not None:
                    profile = known.labeled.profile
                watch = DriftWatch(profile or 0.0)
            self._known[key] = known = known._replace(watch=watch)
        labeled, watch = known.labeled, known.watch
        if labeled is not None and watch is not None and watch.profile != labeled.profile:
            # It was begun before a profile said an accuracy, and nothing was expected until then.
            self._known[key] = known = known._replace(watch=watch.anew(labeled.profile))
        return known

    def _state(self, table: str, key: tuple[str, str]) -> bytes | None:
        of_model = f"SELECT state FROM {table} WHERE variant = ? AND model = ?"
        row = self._base.execute(of_model, key).fetchone()
        return None if row is None else row[0]

    def _measure(self) -> None:
        self._stale, measured = False, {}
        served = self._served  # `follow` may bring others meanwhile
        for variant, (model, accuracy) in served.items():
            known = self._find(variant, model)
            sequence, labeled, powered, watch = known
            joint = sequence.mean if powered is None else powered.estimate
            measured[variant] = VariantAccuracy(
                accuracy,
                known.labels,
                sequence.mean,
                *sequence.interval,
                accuracy if accuracy is None or labeled is None else labeled.accuracy(accuracy),
                0 if powered is None else powered.comparisons.count,
                0 if powered is None else powered.agreed,
                None if powered is None else powered.agreement,
                joint,
                *(sequence if powered is None else powered).interval,
                *((0, None) if watch is None else (watch.alarms, watch.last)),
            )
        self.measured, self._measured_of = measured, dict(served)

    def _write(self) -> None:
        """Write what stands in line, and delete what is too old or too much."""
        rows, now_s = list[tuple[Any, ...]](), time.time()
        first = dict[tuple[str, str], LabeledAccuracy]()
        line = [self._line.popleft() for _ in range(len(self._line))]
        compared = [one for one in line if isinstance(one, ComparedAnswer)]
        decided = [one for one in line if isinstance(one, _Decided)]
        if compared or decided:
            line = [one for one in line if not isinstance(one, ComparedAnswer | _Decided)]
        anew = dict[tuple[str, str], _Known]()
        try:
            for identity, variant, model, profile, expected, outputs in line:
                if expected is not None:
                    key = variant, model
                    if (labeled := self._find(*key).labeled or first.get(key)) is None:
                        labeled = first[key] = LabeledAccuracy(profile)
                    # By the profile of the first answer, so that another one changes nothing.
                    expected = by_profile(expected, labeled.profile, profile)
                rows.append((identity, variant, model, now_s, expected, _said(outputs)))
            with self._base:
                self._base.execute("BEGIN")
                self._base.executemany(
                    "INSERT OR REPLACE INTO answers "
                    "(id, variant, model, at_s, expected, classes) VALUES (?, ?, ?, ?, ?, ?)",
                    rows,
                )
                self._base.executemany(
                    "INSERT OR REPLACE INTO canaries VALUES (?, ?, ?, ?)",
                    [(*one.trial, msgspec.msgpack.encode(one.outcome)) for one in decided],
                )
                if compared:
                    anew = self._compared(compared, first)
                    self._keep_joint(anew)
                self._base.executemany(
                    "INSERT OR REPLACE INTO estimated VALUES (?, ?, ?)",
                    [(*key, one.pack()) for key, one in first.items()],
                )
                self._base.execute(
                    "DELETE FROM answers WHERE number <= (SELECT max(number) FROM answers) - ?",
                    (self._feedback.limit,),
                )
                # They are in the order of their times.
                self._base.execute(
                    "DELETE FROM answers WHERE number < coalesce((SELECT number FROM answers "
                    "WHERE at_s > ? ORDER BY number LIMIT 1), 9e18)",
                    (now_s - self._feedback.keep_s,),
                )
                self._base.execute(
                    "DELETE FROM compared WHERE number < coalesce((SELECT min(number) FROM "
                    "answers), 9e18)"
                )
        except sqlite3.Error:
            self.lost += len(line)
            self._line.extendleft(reversed(decided))  # these are not to be lost
            raise
        self._known |= anew
        for key, one in first.items():
            self._known[key] = self._known[key]._replace(labeled=one)
        self._stale |= bool(anew)

    def _compared(
        self,
        compared: Sequence[ComparedAnswer],
        first: Mapping[tuple[str, str], LabeledAccuracy],
    ) -> dict[tuple[str, str], _Known]:
        """Write comparisons down, each beside its answer, and take them in.

        `first` has what counts for variants whose first answers are written with them.
        """
        anew = dict[tuple[str, str], _Known]()
        for identity, agrees, propensity, reference in compared:
            row = self._base.execute(
                "SELECT number, variant, model, score FROM answers WHERE id = ?", (identity,)
            ).fetchone()
            if row is None or row[3] is not None:
                continue
            number, variant, model, _ = row
            if (variant, model) not in anew:
                known = self._find(variant, model).copy()
                powered = known.powered
                if powered is None or powered.reference != reference:
                    powered = PoweredAccuracy(reference, known.sequence)
                    # Those of before are not in it.
                    self._base.execute(
                        "DELETE FROM compared WHERE number IN (SELECT number FROM answers WHERE "
                        "variant = ? AND model = ?)",
                        (variant, model),
                    )
                labeled = known.labeled or first.get((variant, model))
                anew[variant, model] = known._replace(powered=powered, labeled=labeled)
            powered, labeled = anew[variant, model].powered, anew[variant, model].labeled
            assert powered is not None
            kept = self._coin.random() < KEPT
            powered.compare(agrees, propensity, kept=kept)
            if labeled is not None:
                labeled.compare(AnswerComparison(reference, agrees, propensity, kept))
            self._base.execute(
                "INSERT OR REPLACE INTO compared VALUES (?, ?, ?, ?, ?)",
                (number, reference, agrees, propensity, kept),
            )
        return anew

    async def _write_on(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._turn)
            except sqlite3.Error as error:
                if not self._failing:
                    self._log.warning("answers not kept", task=self._task, reason=str(error))
                self._failing = True
            else:
                if self._failing:
                    self._log.info("answers kept again", task=self._task)
                self._failing = False
            if self.told is not None and self._told is not self.measured and not self._stale:
                self._told = self.measured
                self.told()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._many.wait(), _EVERY_S)
            self._many.clear()

    def _turn(self) -> None:
        with self._lock:
            self._write()
            if self._stale:
                self._measure()

    def _end(self) -> None:
        with self._lock:
            with suppress(sqlite3.Error):
                self._write()
            self._base.close()


def _said(outputs: Arrays | PassedAnswer | None) -> str | None:
    """Write down the class of each row; None where an answer has none, or not of each."""
    if outputs is None:
        return None
    try:
        if isinstance(outputs, PassedAnswer):
            outputs = outputs.decoded()
        return msgspec.json.encode(classes_of(outputs).tolist()).decode()
    except (ScoreError, ValueError, TypeError):
        return None


def noting(
    book: AnswerBook,
    served: Mapping[str, ServedModel],
    noted: Callable[[InferRequest, int], None],
    signature: Signature | None = None,
) -> Callable[[InferRequest, int], None]:
    """Have requests that these variants answer put into a book, too; see `AnswerBook.note`."""

    def both(request: InferRequest, column: int) -> None:
        noted(request, column)
        book.note(request, served, signature)

    return both


def answers_folder(deployment: Path | None) -> Path:
    """Folder of answers and feedback of a deployment file, kept from one run to the next."""
    name = "" if deployment is None else str(deployment.resolve())
    return home_folder("state") / "answers" / sha256(name.encode()).hexdigest()[:16]
