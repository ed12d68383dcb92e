package ledger

// ArchiveState is how far the archive has come.
type ArchiveState struct {
	// LastSuccessAtMS is when it last had all that there was, or took a batch;
	// 0: never.
	LastSuccessAtMS int64
	// LagRows is how many rows were booked since, for each ledger.
	LagRows map[Kind]int64
}
