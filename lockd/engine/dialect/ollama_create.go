package dialect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
)

// modelFileName is how the blob is called in a create request. Ollama decides
// by the suffix that it is a GGUF file.
const modelFileName = "model.gguf"

// ensureCreated makes the model from its file, once, and again if the server
// has lost it. A model of that name that was made from another file, or with
// another template, is replaced. The caller has the turn.
func (o *ollama) ensureCreated(ctx context.Context) error {
	if o.blob != "" {
		models, err := o.list(ctx, "/api/tags")
		if err != nil {
			return fmt.Errorf("list models: %w", err)
		}
		if contains(models, o.model) {
			return nil
		}
	}
	// The digest is made anew in every process: a file that was exchanged
	// must be noticed, and reading it is what loading costs anyway.
	f, err := os.Open(o.file)
	if err != nil {
		return fmt.Errorf("open the file of model %q: %w", o.model, err)
	}
	defer f.Close()
	digest, size, err := digestOf(ctx, f)
	if err != nil {
		return fmt.Errorf("read the file of model %q: %w", o.model, err)
	}
	if err := o.push(ctx, f, digest, size); err != nil {
		return fmt.Errorf("send %s (%d bytes) to Ollama: %w", filepath.Base(o.file), size, err)
	}
	if err := o.create(ctx, digest); err != nil {
		return fmt.Errorf("create model %q from %s: %w", o.model, o.file, err)
	}
	o.blob = digest
	return nil
}

// digestOf reads f to its end and returns its digest as Ollama writes it.
func digestOf(ctx context.Context, f io.Reader) (string, int64, error) {
	h := sha256.New()
	n, err := io.CopyBuffer(h, ctxReader{ctx, f}, make([]byte, 1<<20))
	if err != nil {
		return "", n, err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), n, nil
}

// ctxReader stops reading when its context ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (r ctxReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// push sends the file unless Ollama has it. Ollama checks the digest.
func (o *ollama) push(ctx context.Context, f *os.File, digest string, size int64) error {
	_, err := o.call(ctx, http.MethodHead, "/api/blobs/"+digest, nil)
	if !hasStatus(err, http.StatusNotFound) {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	// The body is hidden behind a reader so that the client does not close
	// the file, and bounded in case the file grows.
	return o.send(ctx, http.MethodPost, "/api/blobs/"+digest, io.LimitReader(f, size), size,
		func(io.Reader) error { return nil })
}

// create makes the model.
func (o *ollama) create(ctx context.Context, digest string) error {
	in := map[string]any{"model": o.model, "files": map[string]string{modelFileName: digest}}
	if o.template != "" {
		in["template"] = o.template
	}
	if len(o.parameters) > 0 {
		in["parameters"] = o.parameters
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return o.send(ctx, http.MethodPost, "/api/create", bytes.NewReader(body), int64(len(body)), progress)
}

// progress follows what Ollama reports while it makes a model, as lines of
// JSON. An error comes as such a line too, under the status 200.
func progress(r io.Reader) error {
	var last string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var line struct {
			Status any    `json:"status"` // a number in an error line
			Error  string `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return fmt.Errorf("unexpected progress from Ollama (%w): %s", err, clip(lines.Text()))
		}
		if line.Error != "" {
			return errors.New(clip(line.Error))
		}
		last, _ = line.Status.(string)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read progress: %w", err)
	}
	if last != "success" {
		return fmt.Errorf("Ollama stopped before it was done: its last status is %q: must be success", last)
	}
	return nil
}
