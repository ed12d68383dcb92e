package archive

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"leeway/broker"
	"leeway/broker/ledger"
)

//go:embed migration/*.sql
var migrations embed.FS

// migrate brings the schema up to what this build writes. It holds a lock
// meanwhile, so that two processes do not do it twice, and refuses a schema
// that is newer than the build.
func migrate(ctx context.Context, conn *pgx.Conn) error {
	files, err := fs.Glob(migrations, "migration/*.sql")
	if err != nil {
		return err
	}
	slices.Sort(files)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockKey("migrations")); err != nil {
			return err
		}
		version, err := schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		if version > len(files) {
			return fmt.Errorf("the database has version %d of the schema, this build knows %d", version, len(files))
		}
		for i := version; i < len(files); i++ {
			sql, err := migrations.ReadFile(files[i])
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, string(sql)); err != nil {
				return fmt.Errorf("%s: %w", files[i], err)
			}
			if _, err := tx.Exec(ctx, "INSERT INTO leeway.migration (version) VALUES ($1)", i+1); err != nil {
				return err
			}
		}
		return nil
	})
}

// schemaVersion reads how many migrations were made. A schema that is there is
// not touched, so that writing the ledgers needs no right to create one.
func schemaVersion(ctx context.Context, tx pgx.Tx) (version int, err error) {
	var there bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass('leeway.migration') IS NOT NULL").Scan(&there); err != nil {
		return 0, err
	}
	if !there {
		_, err := tx.Exec(ctx, `
			CREATE SCHEMA IF NOT EXISTS leeway;
			CREATE TABLE leeway.migration (version integer PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now());`)
		return 0, err
	}
	err = tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM leeway.migration").Scan(&version)
	return version, err
}

// lockKey names an advisory lock.
func lockKey(what string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("leeway archive " + what))
	return int64(h.Sum64())
}

// writer writes over one connection.
type writer struct {
	conn       *pgx.Conn
	deployment string
	locked     bool
}

// prepare makes the tables that rows pass through.
func (w *writer) prepare(ctx context.Context) error {
	_, err := w.conn.Exec(ctx, spendTable.staging()+missTable.staging())
	return err
}

// lock tries to be the one that works. The lock is the connection's: it ends
// with it.
func (w *writer) lock(ctx context.Context) (bool, error) {
	if w.locked {
		return true, nil
	}
	err := w.conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", lockKey("of "+w.deployment)).Scan(&w.locked)
	return w.locked, err
}

func (w *writer) position(ctx context.Context, k ledger.Kind) (p position, err error) {
	var ms, seq int64
	err = w.conn.QueryRow(ctx, "SELECT row_ms, row_seq, booked FROM leeway.cursor WHERE deployment = $1 AND ledger = $2", w.deployment, string(k)).
		Scan(&ms, &seq, &p.booked)
	p.id = fmt.Sprintf("%d-%d", ms, seq)
	return p, err
}

func (w *writer) begin(ctx context.Context, k ledger.Kind, at position) error {
	_, err := w.conn.Exec(ctx, "INSERT INTO leeway.cursor (deployment, ledger, row_ms, row_seq, booked) VALUES ($1, $2, 0, 0, $3) ON CONFLICT DO NOTHING",
		w.deployment, string(k), at.booked)
	return err
}

func (w *writer) count(ctx context.Context, k ledger.Kind, booked int64) error {
	_, err := w.conn.Exec(ctx, "UPDATE leeway.cursor SET booked = $3 WHERE deployment = $1 AND ledger = $2", w.deployment, string(k), booked)
	return err
}

// errMoved means that somebody else has archived meanwhile.
var errMoved = errors.New("the position is no longer where it was read")

// write writes rows and moves the position in one transaction. Rows that are
// there already are passed over; it returns how many were not.
func write[T any](ctx context.Context, w *writer, k ledger.Kind, from, to position, rows []T, bad []broker.Unreadable, t *table[T]) (written int, err error) {
	err = pgx.BeginFunc(ctx, w.conn, func(tx pgx.Tx) error {
		fms, fseq := split(from.id)
		tms, tseq := split(to.id)
		moved, err := tx.Exec(ctx, `UPDATE leeway.cursor SET row_ms = $5, row_seq = $6, booked = $7
			WHERE deployment = $1 AND ledger = $2 AND row_ms = $3 AND row_seq = $4`, w.deployment, string(k), fms, fseq, tms, tseq, to.booked)
		if err != nil {
			return err
		}
		if moved.RowsAffected() != 1 {
			return errMoved
		}
		for i := range bad {
			ms, seq := split(bad[i].ID)
			if _, err := tx.Exec(ctx, `INSERT INTO leeway.unreadable (deployment, ledger, row_ms, row_seq, why, raw)
				VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING`, w.deployment, string(k), ms, seq, text(bad[i].Why), text(bad[i].Raw)); err != nil {
				return err
			}
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{t.stage()}, t.columns, pgx.CopyFromSlice(len(rows), func(i int) ([]any, error) {
			return t.values(w.deployment, &rows[i]), nil
		})); err != nil {
			return err
		}
		columns := strings.Join(t.columns, ", ")
		tag, err := tx.Exec(ctx, "INSERT INTO leeway."+t.name+" ("+columns+") SELECT "+columns+" FROM "+t.stage()+" ON CONFLICT DO NOTHING")
		written = int(tag.RowsAffected())
		return err
	})
	return written, err
}

func split(id string) (ms, seq int64) {
	a, b, _ := strings.Cut(id, "-")
	ms, _ = strconv.ParseInt(a, 10, 64)
	seq, _ = strconv.ParseInt(b, 10, 64)
	return ms, seq
}

// table says how a ledger's rows are written.
type table[T any] struct {
	name    string
	columns []string
	values  func(deployment string, row *T) []any
}

func (t *table[T]) stage() string { return "leeway_stage_" + t.name }

func (t *table[T]) staging() string {
	return "CREATE TEMP TABLE " + t.stage() + " ON COMMIT DELETE ROWS AS SELECT " + strings.Join(t.columns, ", ") + " FROM leeway." + t.name + " WITH NO DATA;\n"
}

// text is a text that PostgreSQL takes: it has no NUL.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

var spendTable = &table[broker.SpendRow]{
	name: "spend",
	columns: []string{
		"deployment", "row_ms", "row_seq", "job_id", "attempt", "path", "class", "producer", "backend", "model", "currency",
		"price_version", "opened_at_ms", "settled_at_ms", "max_cost_micro", "input_tokens", "cached_tokens", "output_tokens",
		"reasoning_tokens", "priced", "cost_micro", "list_cost_micro", "reported_cost_micro", "known", "clamped", "result",
	},
	values: func(deployment string, r *broker.SpendRow) []any {
		ms, seq := split(r.ID)
		return []any{
			deployment, ms, seq, text(r.JobID), r.Attempt, r.Path.String(), text(r.Class), text(r.Producer), text(r.Backend), text(r.Model),
			text(r.Currency), text(r.PriceVersion), r.OpenedAtMS, r.SettledAtMS, r.MaxCostMicro, r.InputTokens, r.CachedTokens, r.OutputTokens,
			r.ReasoningTokens, r.Priced, r.CostMicro, r.ListCostMicro, r.ReportedCostMicro, text(string(r.Known)), r.Clamped, text(r.Result),
		}
	},
}

var missTable = &table[broker.MissRow]{
	name: "miss",
	columns: []string{
		"deployment", "row_ms", "row_seq", "job_id", "path", "class", "producer", "backend", "outcome", "cause", "at_ms", "deadline_at_ms",
		"admit_slack_ms", "admit_queue_age_ms", "predicted_wait_ms", "queue_wait_ms", "first_byte_ms", "late_by_ms",
	},
	values: func(deployment string, r *broker.MissRow) []any {
		ms, seq := split(r.ID)
		return []any{
			deployment, ms, seq, text(r.JobID), r.Path.String(), text(r.Class), text(r.Producer), text(r.Backend), text(string(r.Outcome)),
			text(string(r.Cause)), r.AtMS, r.DeadlineAtMS, r.SlackMS, r.QueueAgeMS, r.PredictedWaitMS, r.QueueWaitMS, r.FirstByteMS, r.LateByMS,
		}
	},
}
