//! Case filters that cargo-generate adds to Liquid.

use heck::{
    ToKebabCase, ToLowerCamelCase, ToPascalCase, ToShoutyKebabCase, ToShoutySnakeCase, ToSnakeCase,
    ToTitleCase, ToUpperCamelCase,
};
use liquid::ParserBuilder;
use liquid_core::{
    Display_filter, Error, Filter, FilterReflection, ParseFilter, Result, Runtime, Value, ValueView,
};

macro_rules! case_filters {
    ($($name:literal $parser:ident $filter:ident $convert:expr;)*) => {
        /// Registers the filters with a parser.
        pub(crate) fn add(builder: ParserBuilder) -> ParserBuilder {
            builder$(.filter($parser))*
        }
        $(
            #[derive(Clone, ParseFilter, FilterReflection)]
            #[filter(
                name = $name,
                description = "Changes the case of a text.",
                parsed($filter)
            )]
            struct $parser;

            #[derive(Debug, Default, Display_filter)]
            #[name = $name]
            struct $filter;

            impl Filter for $filter {
                fn evaluate(&self, input: &dyn ValueView, _: &dyn Runtime) -> Result<Value> {
                    let input = input
                        .as_scalar()
                        .ok_or_else(|| Error::with_msg("String expected"))?;
                    let convert: fn(&str) -> String = $convert;
                    Ok(Value::scalar(convert(&input.into_string())))
                }
            }
        )*
    };
}

case_filters! {
    "kebab_case" KebabParser Kebab |text| text.to_kebab_case();
    "lower_camel_case" LowerCamelParser LowerCamel |text| text.to_lower_camel_case();
    "pascal_case" PascalParser Pascal |text| text.to_pascal_case();
    "shouty_kebab_case" ShoutyKebabParser ShoutyKebab |text| text.to_shouty_kebab_case();
    "shouty_snake_case" ShoutySnakeParser ShoutySnake |text| text.to_shouty_snake_case();
    "snake_case" SnakeParser Snake |text| text.to_snake_case();
    "title_case" TitleParser Title |text| text.to_title_case();
    "upper_camel_case" UpperCamelParser UpperCamel |text| text.to_upper_camel_case();
}
