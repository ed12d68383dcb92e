//go:build server && accept

package e2e_test

import (
	"testing"
	"time"
)

// TestAcceptLargeBatch is the same with 10,000 documents, some 20 MB, in one
// stream.
func TestAcceptLargeBatch(t *testing.T) { largeBatch(t, 10_000, 7*time.Minute) }
