package gguf

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// Check fails where the file at path is no GGUF file of version 2 or 3. What else may be
// wrong with it, the engine that loads it reports.
func Check(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open model file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open model file: %w", err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("model file %s is not a regular file (%s): must be a GGUF file", path, st.Mode().Type())
	}
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return fmt.Errorf("model file %s is too short for a GGUF file: %w", path, err)
	}
	if string(head[:4]) != magic {
		return fmt.Errorf("model file %s is not a GGUF file: it begins with %q", path, head[:4])
	}
	if v := binary.LittleEndian.Uint32(head[4:]); v != 2 && v != version {
		return fmt.Errorf("model file %s is of GGUF version %d: must be 2 or %d", path, v, version)
	}
	return nil
}
