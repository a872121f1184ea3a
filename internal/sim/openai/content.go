package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Content is a string, null, or a list of text parts, which are joined by line
// breaks as vLLM's string content format does.
type Content string

// UnmarshalJSON reads any of the forms.
func (c *Content) UnmarshalJSON(b []byte) error {
	switch {
	case string(b) == "null":
		*c = ""
		return nil
	case b[0] == '"':
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		*c = Content(s)
		return nil
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return errors.New("message content must be a string or a list of parts")
	}
	var texts []string
	for _, raw := range parts {
		var part struct {
			Type string  `json:"type"`
			Text *string `json:"text"`
		}
		if raw[0] == '"' {
			if err := json.Unmarshal(raw, &part.Text); err != nil {
				return err
			}
		} else if err := json.Unmarshal(raw, &part); err != nil {
			return fmt.Errorf("message content part: %w", err)
		} else if part.Type != "text" {
			return fmt.Errorf("message content part of type %q: this model takes text parts only", part.Type)
		}
		if part.Text == nil {
			return errors.New(`message content part: "text" is missing`)
		}
		texts = append(texts, *part.Text)
	}
	*c = Content(strings.Join(texts, "\n"))
	return nil
}
