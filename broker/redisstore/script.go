package redisstore

import (
	"embed"
	"fmt"
	"time"

	"leeway/slackgate"
	"leeway/slackgate/latency"

	"github.com/redis/go-redis/v9"
)

//go:embed script/*.lua
var sources embed.FS

// The scripts, each with the shared part and the check of the layout in front.
var (
	scriptAgree     = load("agree")
	scriptAdmit     = load("admit")
	scriptBeat      = load("beat")
	scriptState     = load("state")
	scriptStep      = load("step")
	scriptRenew     = load("renew")
	scriptSettle    = load("settle")
	scriptCancel    = load("cancel")
	scriptHandback  = load("handback")
	scriptSweep     = load("sweep")
	scriptStrays    = load("strays")
	scriptBooks     = load("books")
	scriptBudgets   = load("budgets")
	scriptTrim      = load("trim")
	scriptRecords   = load("records")
	scriptLive      = load("live")
	scriptReport    = load("report")
	scriptFlag      = load("flag")
	scriptSlices    = load("slices")
	scriptOpenBatch = load("openbatch")
	scriptLines     = load("lines")
	scriptDue       = load("due")
	scriptTold      = load("told")
)

func load(name string) *redis.Script {
	return redis.NewScript(layoutHead(LayoutVersion, layoutReads, layoutOpenTo) + body(name))
}

// lateAfter is how old an offer's numbers may be when the script comes to it, at
// least.
const lateAfter = 50 * time.Millisecond

// constants are the numbers that a script and the code beside it both go by.
var constants = fmt.Sprintf("local const = { rung_digits = %d, demand_fades_ms = %d, settle_args = %d, late_ms = %d, "+
	"slice_ms = %d, slices_keep_ms = %d, sum_field = '%s' }\n",
	slackgate.RungDigits, demandFadesMS, settleArgs, lateAfter.Milliseconds(), latency.SliceMS, latencyKeepMS, latency.SumField)

func body(name string) string {
	if name == "agree" {
		return constants + source("common") + source("shards") + source("layout") + source(name)
	}
	return constants + source("common") + source("layout") + source(name)
}

func source(name string) string {
	b, err := sources.ReadFile("script/" + name + ".lua")
	if err != nil {
		panic(err) // embedded: cannot happen in a built binary
	}
	return string(b)
}
