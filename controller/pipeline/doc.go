// Package pipeline is composition of models: a small graph of steps, written in HCL, that
// is called like a model.
//
//	pipeline "support" {
//	  deadline = "60s"
//
//	  step "classify" {
//	    model      = "small"
//	    prompt     = "Billing or technical? ${input.text}"
//	    max_tokens = 5
//	  }
//	  step "billing" {
//	    model  = "billing-llm"
//	    when   = strcontains(lower(step.classify.text), "billing")
//	    prompt = input.text
//	  }
//	  step "tech" {
//	    model    = "tech-llm"
//	    when     = !strcontains(lower(step.classify.text), "billing")
//	    messages = input.messages
//	  }
//	  step "ideas" {
//	    for_each = ["short", "long"]
//	    model    = "small"
//	    prompt   = "${each.value}: ${input.text}"
//	  }
//	  output = "${coalesce(step.billing, step.tech).text}\n\n${join("\n", step.ideas[*].text)}"
//	}
//
// A step runs once the steps that its expressions name are done; steps that do not name
// each other run at the same time. Its values are
//
//	step.NAME.text            what the model said
//	step.NAME.finish_reason   "stop", "length" or what else the engine says
//	step.NAME.usage           prompt_tokens, completion_tokens and total_tokens
//
// A step whose "when" is false does not run, and is null. With "for_each", a list of at
// most MaxFanOut values, it runs once for each, with each.key (the position, or the key of a
// map) and each.value; step.NAME is then the list of answers in that order, empty where the
// step did not run.
//
// The request that is being answered is
//
//	input.text      the last message of the user, or the prompt
//	input.messages  the messages of a chat; a prompt is one message of the user
//	input.params    the other fields of the request, as try(input.params.temperature, 0)
//
// "output" is a step, coalesce() of several steps (the first one that runs), or an
// expression that is a string. Of the first two the answer is that step's own: it is passed
// on while it comes, with all that the engine says beside the text, and the steps that it
// does not need are ended. Texts that go through an expression are in Unicode's normal form
// C, which is a rule of the expression language.
//
// The package is pure. It calls models through a Caller, reads no clock but that of its
// contexts, and every goroutine that Run starts has ended when Run returns.
package pipeline
