package strategy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
)

// The controller keeps 64 KiB of a strategy's memory. What is larger than maxPlain is packed,
// which leaves about half of it; maxUnpacked bounds what is unpacked again.
const (
	maxPlain    = 32 << 10
	maxUnpacked = 8 << 20
)

// packed is a memory that was packed.
type packed struct {
	Gzip []byte `json:"gzip,omitempty"`
}

// pack makes JSON shorter where it is long. What cannot be packed stays as it is.
func pack(raw []byte) ([]byte, error) {
	if len(raw) <= maxPlain {
		return raw, nil
	}
	var short bytes.Buffer
	z := gzip.NewWriter(&short)
	if _, err := z.Write(raw); err != nil {
		return nil, fmt.Errorf("pack the state: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("pack the state: %w", err)
	}
	return json.Marshal(packed{short.Bytes()})
}

// unpack undoes pack.
func unpack(raw []byte) ([]byte, error) {
	var p packed
	if err := json.Unmarshal(raw, &p); err != nil || p.Gzip == nil {
		return raw, nil //nolint:nilerr // whoever reads it says what is wrong with it
	}
	z, err := gzip.NewReader(bytes.NewReader(p.Gzip))
	if err != nil {
		return nil, fmt.Errorf("unpack the state: %w", err)
	}
	raw, err = io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	if err != nil {
		return nil, fmt.Errorf("unpack the state: %w", err)
	}
	if len(raw) > maxUnpacked {
		return nil, fmt.Errorf("unpack the state: it has more than %d bytes", maxUnpacked)
	}
	return raw, nil
}
