// Package faultpoint names the places at which a test lets a process die. Only a
// build with the tag faultpoints can: in every other one Reach does nothing and
// the compiler leaves it out.
package faultpoint

// The places, in the order in which a submission and its job pass them.
const (
	// Received: a submission was read, and nothing was decided.
	Received = "received"
	// Promising: the gate's numbers are worked out and not yet checked.
	Promising = "promising"
	// Promised: the store has decided; the job is on record if it was admitted.
	Promised = "promised"
	// Ticketing: the verdict may be on its way to the producer; the admitted job's
	// ticket is not written.
	Ticketing = "ticketing"
	// Replying: the verdict is about to be written to the producer.
	Replying = "replying"
	// Claimed: a worker has claimed a job, and has not called a backend.
	Claimed = "claimed"
	// Booked: the spend row is written, and the backend not yet called.
	Booked = "booked"
	// Answered: the backend has answered, and the outcome is not yet written.
	Answered = "answered"
	// Finished: the outcome is written, and its line is not yet in the log.
	Finished = "finished"
	// Told: a webhook's target has taken a message, and that is not put down.
	Told = "told"
)

// API and Worker are the places that each process passes.
var (
	API    = []string{Received, Promising, Promised, Ticketing, Replying}
	Worker = []string{Claimed, Booked, Answered, Finished}
)
