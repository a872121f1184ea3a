package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sort"
)

// computeHash is the layout hash of the protocol: SHA-256 over the allocations by
// slot, each with its rank in place of its slot, and over the metadata by key. It
// is structural: equal layouts hash equal whatever the bytes on the GPU.
func (m *Machine) computeHash() string {
	h := sha256.New()
	rank := make(map[string]int, len(m.allocations))
	for i, a := range m.allocations {
		rank[a.ID] = i
		fmt.Fprintf(h, "%d:%d:%d:%s", i, a.Size, a.AlignedSize, a.Tag)
	}
	keys := make([]string, 0, len(m.metadata))
	for key := range m.metadata {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		e := m.metadata[key]
		fmt.Fprintf(h, "%s:%d:%d:", key, rank[e.AllocationID], e.Offset)
		h.Write(e.Value)
	}
	return hex.EncodeToString(h.Sum(nil))
}
