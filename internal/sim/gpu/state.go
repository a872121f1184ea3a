package gpu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// maxStateFile bounds what is read of a state file. 256 GPUs with a sentence
// each need a tenth of it.
const maxStateFile = 1 << 20

// state is what a state file says:
//
//	{"gpus": {
//	  "GPU-00000000-0000-4000-8000-000000000000": {"unhealthy": "XID 79: the GPU has fallen off the bus"},
//	  "GPU-00000000-0000-4000-8000-000000000001": {"absent": true}
//	}}
//
// GPUs that it does not name are present and healthy.
type state struct {
	GPUs map[string]gpuState `json:"gpus"`
}

// gpuState is the state of one GPU.
type gpuState struct {
	// Unhealthy is the reason why the GPU must not be used.
	Unhealthy string `json:"unhealthy"`
	// Absent takes the GPU off the node.
	Absent bool `json:"absent"`
}

// parseState reads a state file. An unknown field or a GPU that is not
// simulated here is an error: it is a typing mistake that would otherwise do
// nothing in silence.
func parseState(data []byte, isKnown func(uuid string) bool) (state, error) {
	var s state
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return state{}, fmt.Errorf("parse: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return state{}, errors.New("parse: there is more after the first JSON value")
	}
	for uuid := range s.GPUs {
		if !isKnown(uuid) {
			return state{}, fmt.Errorf("GPU %q is not simulated on this node", uuid)
		}
	}
	return s, nil
}

// readStateFile reads the file, nil where there is none.
func readStateFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, maxStateFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if len(data) > maxStateFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxStateFile)
	}
	if data == nil {
		data = []byte{}
	}
	return data, nil
}
