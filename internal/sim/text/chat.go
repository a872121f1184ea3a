package text

import "strings"

// The marks of the chat template (ChatML).
const (
	imStart = "<|im_start|>"
	imEnd   = "<|im_end|>"
)

// Message is one turn of a chat.
type Message struct {
	Role    string
	Content string
}

// Render applies the chat template. With continueFinal the last message stays
// open, so that the model goes on inside it; otherwise, with
// addGenerationPrompt, an assistant's turn is opened.
//
// Rendering a chat and appending part of an answer equals rendering the chat
// with that part as a last, continued assistant message.
func Render(messages []Message, addGenerationPrompt, continueFinal bool) string {
	var b strings.Builder
	size := len(imStart) + 16
	for _, m := range messages {
		size += len(imStart) + len(m.Role) + len(m.Content) + len(imEnd) + 2
	}
	b.Grow(size)
	for i, m := range messages {
		b.WriteString(imStart)
		b.WriteString(m.Role)
		b.WriteByte('\n')
		b.WriteString(m.Content)
		if continueFinal && i == len(messages)-1 {
			return b.String()
		}
		b.WriteString(imEnd)
		b.WriteByte('\n')
	}
	if addGenerationPrompt {
		b.WriteString(imStart)
		b.WriteString("assistant\n")
	}
	return b.String()
}
