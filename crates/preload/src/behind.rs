//! The original function, for those of ours that do not come from a table.

/// The function behind, as a pointer of this type; leaves ours with an error if there is none.
macro_rules! behind {
    ($original:ident as $type:ty) => {{
        let address = $original.address();
        if address.is_null() {
            return $crate::original::missing();
        }
        // SAFETY: the function of this name in the C library has this type, by its manual page.
        unsafe { std::mem::transmute::<*mut c_void, $type>(address) }
    }};
}

pub(crate) use behind;
