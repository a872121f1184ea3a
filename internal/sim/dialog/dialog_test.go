package dialog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/sim/dialog"
	"remuda/internal/sim/text"
)

func TestCalls(t *testing.T) {
	t.Parallel()
	tools := []dialog.Tool{{Name: "one"}, {Name: "two"}}
	user := []text.Message{{Role: dialog.User, Content: "two, then one"}}
	silent := []text.Message{{Role: dialog.User, Content: "Hello"}}
	result := []text.Message{{Role: dialog.User, Content: "one"}, {Role: dialog.ToolRole, Content: "one"}}
	for name, tt := range map[string]struct {
		c    dialog.Conversation
		want []string
	}{
		"named in the message": {dialog.Conversation{Messages: user, Tools: tools}, []string{"one", "two"}},
		"one at a time":        {dialog.Conversation{Messages: user, Tools: tools, OneCall: true}, []string{"one"}},
		"none named":           {dialog.Conversation{Messages: silent, Tools: tools}, nil},
		"after a result":       {dialog.Conversation{Messages: result, Tools: tools}, nil},
		"none wanted":          {dialog.Conversation{Messages: user, Tools: tools, Choice: dialog.Choice{Mode: dialog.None}}, nil},
		"required":             {dialog.Conversation{Messages: user, Tools: tools[:1], Choice: dialog.Choice{Mode: dialog.Required}}, []string{"one"}},
		"forced": {
			dialog.Conversation{Messages: silent, Tools: tools, Choice: dialog.Choice{Mode: dialog.Named, Name: "two"}}, []string{"two"},
		},
	} {
		script, err := tt.c.Script("m")
		require.Nil(t, err, name)
		var got []string
		for _, p := range script {
			got = append(got, p.Call)
			require.Equal(t, "{}", p.Text)
		}
		require.Equal(t, tt.want, got, name)
	}
}

func TestConversationsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]dialog.Conversation{
		"tools":       {Tools: []dialog.Tool{{}}},
		"tool_choice": {Choice: dialog.Choice{Mode: dialog.Required}},
		"schema":      {JSON: true, Schema: []byte(`{"type":"x"}`)},
	} {
		_, err := c.Script("m")
		require.NotNil(t, err)
		require.Equal(t, field, err.Field)
		require.NotEmpty(t, err.Error())
	}
}

// TestToolsAreInThePrompt: what the model is shown counts.
func TestToolsAreInThePrompt(t *testing.T) {
	t.Parallel()
	c := dialog.Conversation{Messages: []text.Message{{Role: dialog.User, Content: "Hi"}}}
	plain := c.Prompt()
	require.Equal(t, text.Render(c.Messages, true, false), plain)
	c.Tools = []dialog.Tool{{Name: "f", Description: "<d>"}}
	require.Contains(t, c.Prompt(), `{"name":"f","description":"<d>"}`)
	require.Len(t, c.Messages, 1)
}
