drop table penstock.prompt_uses, penstock.prompt_pins, penstock.prompts cascade;
