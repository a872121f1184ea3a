package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
)

// ErrForm is a body that is not a form, or not one that engines read in one way only.
var ErrForm = errors.New("the request body is not a valid form")

// maxField is the length of the longest name of a model in a form.
const maxField = 1 << 10

// ScanForm returns the head of a request in multipart/form-data: its model, and whether it streams.
// The error wraps ErrForm, or is ErrNoModel.
func ScanForm(contentType string, body []byte) (Head, error) {
	var h Head
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return h, fmt.Errorf("%w: its Content-Type is %.100q", ErrForm, contentType)
	}
	parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
	seen := map[string]bool{}
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return h, fmt.Errorf("%w: %w", ErrForm, err)
		}
		name := part.FormName()
		if name != "model" && name != "stream" {
			continue
		}
		if seen[name] {
			return h, fmt.Errorf("%w: it has the field %q twice", ErrForm, name)
		}
		seen[name] = true
		value, err := io.ReadAll(io.LimitReader(part, maxField+1))
		switch {
		case err != nil:
			return h, fmt.Errorf("%w: %w", ErrForm, err)
		case len(value) > maxField:
			return h, fmt.Errorf("%w: the field %q has more than %d bytes", ErrForm, name, maxField)
		case name == "model":
			h.Model = string(value)
		default:
			h.Stream = string(value) == "true" || string(value) == "True" || string(value) == "1"
		}
	}
	if h.Model == "" {
		return h, ErrNoModel
	}
	return h, nil
}
