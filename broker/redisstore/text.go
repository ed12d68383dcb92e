package redisstore

import (
	"strconv"
	"strings"

	"leeway/broker"
)

// withInstruction begins a stored text that has the producer's instruction in
// front of it: the mark, the instruction's length in bytes, the mark again, the
// instruction, the text. A text that happens to begin with the mark is stored
// the same way, with an instruction of no bytes.
const withInstruction = "\x00"

// storedText is a job's text as it is kept.
func storedText(j *broker.Submission) string {
	if j.Instruction == "" && !strings.HasPrefix(j.Text, withInstruction) {
		return j.Text
	}
	return withInstruction + strconv.Itoa(len(j.Instruction)) + withInstruction + j.Instruction + j.Text
}

// readText undoes storedText.
func readText(stored string) (text, instruction string) {
	rest, ok := strings.CutPrefix(stored, withInstruction)
	if !ok {
		return stored, ""
	}
	length, rest, ok := strings.Cut(rest, withInstruction)
	n, err := strconv.Atoi(length)
	if !ok || err != nil || n < 0 || n > len(rest) {
		return stored, "" // not ours: as it is
	}
	return rest[n:], rest[:n]
}
