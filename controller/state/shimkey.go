package state

import (
	"crypto/ed25519"
	"crypto/rand"

	"github.com/hashicorp/go-memdb"
)

// ShimKey is the key with which the controller proves itself to the shims of its replicas: see
// replica.Secret. Each replica's job has the public part. It is made once, by the first leader, and
// is in no answer of the API. Like the log, a snapshot has it.
type ShimKey struct {
	// Seed is the private key's (RFC 8032).
	Seed []byte

	CreateIndex uint64
}

// key is onlyRow, and empty for a row without a key.
func (k *ShimKey) key() string {
	if len(k.Seed) != ed25519.SeedSize {
		return ""
	}
	return onlyRow
}

// SetShimKey sets the key. It changes nothing if there is one: the jobs that run have its public
// part.
type SetShimKey struct {
	Seed []byte
}

// NewShimKey returns the command that sets a new key.
func NewShimKey() *SetShimKey {
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed) // never fails
	return &SetShimKey{Seed: seed}
}

// Type implements Command.
func (*SetShimKey) Type() Type { return TypeSetShimKey }

func (c *SetShimKey) apply(t *txn) *Error {
	row := &ShimKey{Seed: c.Seed, CreateIndex: t.index}
	if row.key() == "" {
		return badRequest("", "the seed of the shims' key is %d bytes: must be %d bytes", len(c.Seed), ed25519.SeedSize)
	}
	if first[ShimKey](t.Txn, TableShimKey, byID, onlyRow) == nil {
		t.put(TableShimKey, row)
	}
	return nil
}

// ShimKey returns the key, nil before the first leader has made it.
func (v *View) ShimKey(ws memdb.WatchSet) ed25519.PrivateKey {
	k := queryOne[ShimKey](v, ws, TableShimKey, byID, onlyRow)
	if k == nil {
		return nil
	}
	return ed25519.NewKeyFromSeed(k.Seed)
}
