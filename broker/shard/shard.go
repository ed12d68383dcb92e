// Package shard makes one deployment of several shards. A shard is a store with
// keys under a hash tag of its own, and its own gate: all that an admission or an
// outcome touches lies in one, so that each stays one atomic step. This package
// says which shard a job belongs to, and puts together what is read over all.
//
// With one shard nothing of this is used: its store is the deployment's.
package shard

import (
	"strconv"
	"strings"
)

// mark stands between an id and the number of its shard. No id of one shard
// has it.
const mark = "."

// Mark gives an id the number of its shard, out of n. With one shard an id stays
// what it is.
func Mark(id string, shard, n int) string {
	if n == 1 {
		return id
	}
	return id + mark + strconv.Itoa(shard)
}

// Of is the shard that an id of a job or a batch names, out of n. An id that
// names none of them belongs to the first, where it is not found.
func Of(id string, n int) int {
	if n == 1 {
		return 0
	}
	i := strings.LastIndex(id, mark)
	if i < 0 {
		return 0
	}
	shard, err := strconv.Atoi(id[i+1:])
	if err != nil || shard < 0 || shard >= n {
		return 0
	}
	return shard
}

// marked reports whether an id names a shard.
func marked(id string) bool { return strings.Contains(id, mark) }

// slots is how many a Redis Cluster has.
const slots = 16384

// Prefixes are the prefixes of the keys of n shards under a deployment's prefix.
// With one shard it is the deployment's own. Else the slots of a Redis Cluster
// that they lead to are 16384/n apart, so that masters with equal parts of the
// slots hold equal numbers of shards, as long as n is a multiple of theirs: the
// last part of a prefix is the first number that leads to the slot.
func Prefixes(prefix string, n int) []string {
	if n == 1 {
		return []string{prefix}
	}
	out := make([]string, n)
	out[0] = prefix + mark + "0"
	first := slot(out[0])
	for i := 1; i < n; i++ {
		name := prefix + mark + strconv.Itoa(i)
		want := (first + i*slots/n) % slots
		for k := 0; slot(name) != want; k++ {
			name = prefix + mark + strconv.Itoa(i) + "-" + strconv.Itoa(k)
		}
		out[i] = name
	}
	return out
}

// slot is the slot of a hash tag in a Redis Cluster: CRC16 (XMODEM) of its
// bytes, modulo the number of slots.
func slot(tag string) int {
	var crc uint16
	for _, b := range []byte(tag) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}

// hash spreads names over n shards: FNV-1a with the bits mixed once more, since
// its last ones follow the last byte. It must not change: keys are looked for
// where it leads.
func hash(name string, n int) int {
	h := uint64(14695981039346656037)
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return int(h % uint64(n))
}
