package slackgate

// Part is what a shard, counted from 0, gets of a total that n shards divide
// among them. The first get one more where it does not come out even.
func Part(total, shard, n int) int {
	part := total / n
	if shard < total%n {
		part++
	}
	return part
}
